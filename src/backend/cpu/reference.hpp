// The specification in code: every operation of the CPU backend as plain loops over T. Tests compare the
// kernels with T = double. Written to be read beside docs/model.md; speed does not matter here.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "model/shape.hpp"

namespace ds4::cpu::reference {

// --- Vectors (backend/cpu/vector_ops.hpp) ---

template <class T>
T dot(const T* a, const T* b, size_t n) {
  T sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
T sum_of_squares(const T* x, size_t n) {
  return dot(x, x, n);
}

template <class T>
void scale(const T* x, T factor, const T* weight, size_t n, T* out) {
  for (size_t i = 0; i < n; ++i) out[i] = x[i] * factor * (weight != nullptr ? weight[i] : T(1));
}

template <class T>
void add(const T* x, size_t n, T* out) {
  for (size_t i = 0; i < n; ++i) out[i] += x[i];
}

/// Input of a sublayer from the streams x [4][width] (docs/model.md §4).
template <class T>
void mix_streams(const T* x, const T* weight, size_t width, T* out) {
  for (size_t i = 0; i < width; ++i) {
    out[i] = 0;
    for (size_t h = 0; h < model::streams; ++h) out[i] += weight[h] * x[h * width + i];
  }
}

/// Streams after a sublayer with output `out`; comb[j * 4 + k] goes from stream j to stream k (docs/model.md
/// §4).
template <class T>
void post_streams(T* x, const T* out, const T* post, const T* comb, size_t width) {
  for (size_t i = 0; i < width; ++i) {
    std::array<T, model::streams> mixed;
    for (size_t k = 0; k < model::streams; ++k) {
      mixed[k] = post[k] * out[i];
      for (size_t j = 0; j < model::streams; ++j) mixed[k] += comb[j * model::streams + k] * x[j * width + i];
    }
    for (size_t k = 0; k < model::streams; ++k) x[k * width + i] = mixed[k];
  }
}

template <class T>
T sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

/// docs/model.md §3.7.
template <class T>
void swiglu(const T* gate, const T* up, T clamp, T weight, size_t n, T* out) {
  for (size_t i = 0; i < n; ++i) {
    const T g = std::min(gate[i], clamp);
    out[i] = g * sigmoid(g) * std::clamp(up[i], -clamp, clamp) * weight;
  }
}

/// out[h][t] = factor * (query h . row t).
template <class T>
void row_scores(const T* query, size_t heads, const T* rows, size_t count, size_t dim, T factor, T* out,
                size_t out_stride) {
  for (size_t h = 0; h < heads; ++h) {
    for (size_t t = 0; t < count; ++t) {
      out[h * out_stride + t] = factor * dot(query + h * dim, rows + t * dim, dim);
    }
  }
}

/// Scores to un-normalised weights, and their sum with the sink's (docs/model.md §5.3).
template <class T>
T softmax_with_sink(T* scores, size_t count, T sink) {
  T max = sink;
  for (size_t t = 0; t < count; ++t) max = std::max(max, scores[t]);
  T sum = std::exp(sink - max);
  for (size_t t = 0; t < count; ++t) sum += scores[t] = std::exp(scores[t] - max);
  return sum;
}

/// out[h] = factor[h] * sum over t of weights[h][t] * row t.
template <class T>
void weighted_rows(const T* weights, size_t weight_stride, size_t heads, const T* rows, size_t count,
                   size_t dim, const T* factor, T* out) {
  for (size_t h = 0; h < heads; ++h) {
    for (size_t i = 0; i < dim; ++i) {
      T sum = 0;
      for (size_t t = 0; t < count; ++t) sum += weights[h * weight_stride + t] * rows[t * dim + i];
      out[h * dim + i] = sum * factor[h];
    }
  }
}

/// out[t] = sum over h of head_weight[h] * max(0, scores[h][t]) (docs/model.md §7).
template <class T>
void weighted_relu(const T* scores, size_t stride, size_t heads, const T* head_weight, size_t count, T* out) {
  for (size_t t = 0; t < count; ++t) {
    out[t] = 0;
    for (size_t h = 0; h < heads; ++h) out[t] += head_weight[h] * std::max(T(0), scores[h * stride + t]);
  }
}

/// Softmax over the rows, for each column on its own; a score of -infinity is weight 0 (docs/model.md §6).
template <class T>
void pool_columns(const T* const* values, const T* const* scores, size_t count, size_t n, T* out) {
  for (size_t i = 0; i < n; ++i) {
    T max = -std::numeric_limits<T>::infinity();
    for (size_t t = 0; t < count; ++t) max = std::max(max, scores[t][i]);
    T weight_sum = 0, sum = 0;
    for (size_t t = 0; t < count; ++t) {
      const T weight = std::exp(scores[t][i] - max);
      weight_sum += weight;
      sum += weight * values[t][i];
    }
    out[i] = sum / weight_sum;
  }
}

// --- Normalisation and rotation ---

/// docs/model.md §3.1.
template <class T>
void rms_norm(const T* x, const T* weight, size_t n, T* out) {
  const T mean = sum_of_squares(x, n) / static_cast<T>(n);
  scale(x, 1 / std::sqrt(mean + T(model::norm_epsilon)), weight, n, out);
}

/// Rotates the adjacent pairs of `tail` by angles[i], or back (docs/model.md §3.2).
template <class T>
void rotate(T* tail, const T* angles, bool inverse = false) {
  for (size_t i = 0; i < model::rope_dim / 2; ++i) {
    const T c = std::cos(angles[i]), s = inverse ? -std::sin(angles[i]) : std::sin(angles[i]);
    const T a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * c - b * s;
    tail[2 * i + 1] = a * s + b * c;
  }
}

// --- Hyper-connections (docs/model.md §4) ---

template <class T>
struct HyperConnection {
  std::array<T, model::streams> pre, post;
  std::array<T, model::streams * model::streams> comb;
};

/// Divides every row (or column) of c by its sum.
template <class T>
void normalize(std::array<T, model::streams * model::streams>& c, bool rows) {
  constexpr size_t n = model::streams;
  for (size_t line = 0; line < n; ++line) {
    const auto at = [&](size_t i) -> T& { return rows ? c[line * n + i] : c[i * n + line]; };
    T sum = model::hc_epsilon;
    for (size_t i = 0; i < n; ++i) sum += at(i);
    for (size_t i = 0; i < n; ++i) at(i) /= sum;
  }
}

template <class T>
HyperConnection<T> split_mix(const T* mix, const T* factor, const T* base) {
  constexpr size_t n = model::streams;
  HyperConnection<T> hc;
  for (size_t h = 0; h < n; ++h) {
    hc.pre[h] = sigmoid(mix[h] * factor[0] + base[h]) + T(model::hc_epsilon);
    hc.post[h] = 2 * sigmoid(mix[n + h] * factor[1] + base[n + h]);
  }
  for (size_t j = 0; j < n; ++j) {
    T* row = &hc.comb[j * n];
    for (size_t k = 0; k < n; ++k) row[k] = mix[2 * n + j * n + k] * factor[2] + base[2 * n + j * n + k];
    const T max = *std::max_element(row, row + n);
    T sum = 0;
    for (size_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - max);
    for (size_t k = 0; k < n; ++k) row[k] = row[k] / sum + T(model::hc_epsilon);
  }
  normalize(hc.comb, false);
  for (uint32_t i = 1; i < model::sinkhorn_iterations; ++i) {
    normalize(hc.comb, true);
    normalize(hc.comb, false);
  }
  return hc;
}

template <class T>
std::array<T, model::streams> split_head_mix(const T* mix, T factor, const T* base) {
  std::array<T, model::streams> weights;
  for (size_t h = 0; h < model::streams; ++h) {
    weights[h] = sigmoid(mix[h] * factor + base[h]) + T(model::hc_epsilon);
  }
  return weights;
}

/// The `count` numbers with the highest scores, ascending; of equal scores the lower number.
template <class T>
std::vector<uint32_t> select_best(const std::vector<T>& scores, size_t count) {
  std::vector<uint32_t> best(scores.size());
  std::iota(best.begin(), best.end(), 0u);
  std::sort(best.begin(), best.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
  });
  best.resize(count);
  std::sort(best.begin(), best.end());
  return best;
}

// --- Router (docs/model.md §8.1) ---

template <class T>
struct Route {
  std::vector<uint32_t> experts;  // ascending
  std::vector<T> weights;
};

/// Weights of given experts.
template <class T>
Route<T> weigh_experts(const T* probability, std::vector<uint32_t> experts, T factor) {
  std::sort(experts.begin(), experts.end());
  T sum = 0;
  for (uint32_t e : experts) sum += probability[e];
  std::vector<T> weights;
  weights.reserve(experts.size());
  for (uint32_t e : experts) weights.push_back(probability[e] / std::max(sum, T(0x1p-14)) * factor);
  return {std::move(experts), std::move(weights)};
}

/// logits [experts] become probabilities. `chosen` empty: the `used` best by probability + bias.
template <class T>
Route<T> route(T* logits, size_t experts, size_t used, const T* bias, std::vector<uint32_t> chosen,
               T factor) {
  for (size_t e = 0; e < experts; ++e) {
    logits[e] = std::sqrt(logits[e] > 20 ? logits[e] : std::log1p(std::exp(logits[e])));
  }
  if (chosen.empty()) {
    std::vector<T> scores(logits, logits + experts);
    for (size_t e = 0; e < experts; ++e) scores[e] += bias[e];
    chosen = select_best(scores, used);
  }
  return weigh_experts(logits, std::move(chosen), factor);
}

// --- Attention of one token (docs/model.md §5.3) ---

/// query [heads][512] becomes the heads' outputs; rows [count][512] are keys and values of all heads.
template <class T>
void attend(T* query, size_t heads, const T* sinks, const T* rows, size_t count) {
  constexpr size_t dim = model::head_dim;
  std::vector<T> scores(count);
  for (size_t h = 0; h < heads; ++h) {
    T* q = query + h * dim;
    row_scores(q, 1, rows, count, dim, 1 / std::sqrt(T(dim)), scores.data(), count);
    const T factor = 1 / softmax_with_sink(scores.data(), count, sinks[h]);
    weighted_rows(scores.data(), count, 1, rows, count, dim, &factor, q);
  }
}

// --- Indexer (docs/model.md §7) ---

/// Score of every key [count][128] for one token's query [heads][128].
template <class T>
std::vector<T> index_scores(const T* query, size_t heads, const T* head_weights, const T* keys,
                            size_t count) {
  std::vector<T> products(heads * count), scores(count);
  row_scores(query, heads, keys, count, model::index_head_dim, T(1), products.data(), count);
  weighted_relu(products.data(), count, heads, head_weights, count, scores.data());
  return scores;
}

// --- Compressor (docs/model.md §6) ---

/// Row `j` before normalisation, from the projections of all tokens: values and gates [tokens][width] (gates
/// without the position table), ape [ratio][width].
template <class T>
std::vector<T> pool_window(const T* values, const T* gates, const T* ape, uint32_t ratio, uint32_t dim,
                           size_t j) {
  const size_t width = model::compressor_width(ratio, dim);
  std::vector<const T*> value_rows, score_rows;
  std::vector<std::vector<T>> scores;
  // Token t's part from `column` on takes part in the window.
  const auto take = [&](size_t t, size_t column) {
    value_rows.push_back(values + t * width + column);
    scores.emplace_back(dim);
    for (size_t i = 0; i < dim; ++i) {
      scores.back()[i] = gates[t * width + column + i] + ape[t % ratio * width + column + i];
    }
  };
  const bool overlaps = ratio == model::csa_ratio;
  if (overlaps && j > 0) {
    for (size_t t = (j - 1) * ratio; t < j * ratio; ++t) take(t, 0);
  }
  for (size_t t = j * ratio; t < (j + 1) * ratio; ++t) take(t, overlaps ? dim : 0);
  for (const auto& row : scores) score_rows.push_back(row.data());
  std::vector<T> out(dim);
  pool_columns(value_rows.data(), score_rows.data(), value_rows.size(), dim, out.data());
  return out;
}

/// Finished row `j` before the rounding of the cache; angles of the position of the window's first token.
template <class T>
std::vector<T> compress_window(const T* values, const T* gates, const T* ape, const T* norm, const T* angles,
                               uint32_t ratio, uint32_t dim, size_t j) {
  std::vector<T> row = pool_window(values, gates, ape, ratio, dim, j);
  rms_norm(row.data(), norm, dim, row.data());
  rotate(row.data() + dim - model::rope_dim, angles);
  return row;
}

}  // namespace ds4::cpu::reference
