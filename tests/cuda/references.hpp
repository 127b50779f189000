// Float64 and plain counterparts of what attention and indexer compute, for their tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "backend/cpu/rope.hpp"

namespace ds4::cuda {

inline std::vector<float> frequency_table(uint32_t ratio) {
  const auto frequencies = cpu::rope_frequencies(ratio != 0);
  return {frequencies.begin(), frequencies.end()};
}

/// `direction` is 1, or -1 to rotate back.
inline void rotate_double(double* tail, uint64_t position, const std::vector<float>& frequencies,
                          double direction) {
  for (size_t i = 0; i < 32; ++i) {
    const double angle = direction * (static_cast<float>(position) * frequencies[i]);
    const double a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * std::cos(angle) - b * std::sin(angle);
    tail[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

/// A query head as attention uses it: divided by its root mean square, rotated.
inline std::vector<double> prepare_double(const float* query, uint64_t position,
                                          const std::vector<float>& frequencies) {
  std::vector<double> q(query, query + 512);
  double squares = 0;
  for (const double x : q) squares += x * x;
  for (double& x : q) x /= std::sqrt(squares / 512 + 1e-6);
  rotate_double(q.data() + 448, position, frequencies, 1.0);
  return q;
}

/// Softmax attention of one head with a sink; `value(t, i)` is element i of row t of `count`.
template <class Value>
std::vector<double> attend_double(const std::vector<double>& query, size_t count, float sink, Value&& value) {
  std::vector<double> score(count);
  double maximum = sink;
  for (size_t t = 0; t < count; ++t) {
    double sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += query[i] * value(t, i);
    score[t] = sum / std::sqrt(512.0);
    maximum = std::max(maximum, score[t]);
  }
  double denominator = std::exp(sink - maximum);
  std::vector<double> out(512, 0.0);
  for (size_t t = 0; t < count; ++t) {
    const double weight = std::exp(score[t] - maximum);
    denominator += weight;
    for (size_t i = 0; i < 512; ++i) out[i] += weight * value(t, i);
  }
  for (double& x : out) x /= denominator;
  return out;
}

inline double relative_error(const float* got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / std::max(norm, 1e-60));
}

/// Highest first, NaN as -infinity, ties to the lower row; the first top_k, ascending.
inline std::vector<uint32_t> best_rows(const float* scores, size_t visible, uint32_t top_k) {
  std::vector<uint32_t> order(visible);
  std::iota(order.begin(), order.end(), 0u);
  const auto rank = [&](uint32_t row) { return std::isnan(scores[row]) ? -INFINITY : scores[row]; };
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return rank(a) > rank(b); });
  order.resize(top_k);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace ds4::cuda
