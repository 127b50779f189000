#include "backend/cpu/hyper_connection.hpp"

#include <algorithm>
#include <cmath>

namespace ds4::cpu {
namespace {

constexpr size_t n = model::streams;
constexpr float epsilon = model::hc_epsilon;

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

using Matrix4 = std::array<float, n * n>;

void normalize_rows(Matrix4& c) {
  for (size_t j = 0; j < n; ++j) {
    float sum = 0;
    for (size_t k = 0; k < n; ++k) sum += c[j * n + k];
    for (size_t k = 0; k < n; ++k) c[j * n + k] /= sum + epsilon;
  }
}

void normalize_columns(Matrix4& c) {
  for (size_t k = 0; k < n; ++k) {
    float sum = 0;
    for (size_t j = 0; j < n; ++j) sum += c[j * n + k];
    for (size_t j = 0; j < n; ++j) c[j * n + k] /= sum + epsilon;
  }
}

void softmax_rows(Matrix4& c) {
  for (size_t j = 0; j < n; ++j) {
    float* row = &c[j * n];
    const float max = *std::max_element(row, row + n);
    float sum = 0;
    for (size_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - max);
    for (size_t k = 0; k < n; ++k) row[k] = row[k] / sum + epsilon;
  }
}

}  // namespace

HyperConnection split_mix(const float* mix, const float* scale, const float* base) {
  HyperConnection hc;
  for (size_t h = 0; h < n; ++h) {
    hc.pre[h] = sigmoid(mix[h] * scale[0] + base[h]) + epsilon;
    hc.post[h] = 2.0f * sigmoid(mix[n + h] * scale[1] + base[n + h]);
  }
  for (size_t i = 0; i < n * n; ++i) hc.comb[i] = mix[2 * n + i] * scale[2] + base[2 * n + i];
  softmax_rows(hc.comb);
  normalize_columns(hc.comb);
  for (uint32_t i = 1; i < model::sinkhorn_iterations; ++i) {
    normalize_rows(hc.comb);
    normalize_columns(hc.comb);
  }
  return hc;
}

std::array<float, n> split_head_mix(const float* mix, float scale, const float* base) {
  std::array<float, n> weights;
  for (size_t h = 0; h < n; ++h) weights[h] = sigmoid(mix[h] * scale + base[h]) + epsilon;
  return weights;
}

}  // namespace ds4::cpu
