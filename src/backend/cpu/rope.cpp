#include "backend/cpu/rope.hpp"

#include <algorithm>
#include <cmath>

namespace ds4::cpu {

std::array<float, rope_pairs> rope_frequencies(bool compressed) {
  std::array<float, rope_pairs> frequencies;
  const float base = static_cast<float>(compressed ? model::compressed_rope_base : model::rope_base);
  for (size_t i = 0; i < rope_pairs; ++i) {
    frequencies[i] = 1.0f / std::pow(base, static_cast<float>(2 * i) / static_cast<float>(model::rope_dim));
  }
  if (!compressed) return frequencies;

  // YaRN: pairs that turn often within the original context keep their frequency, slow ones are divided by
  // the factor, those between `low` and `high` are blended.
  const auto correction = [](double rotations) {
    return model::rope_dim * std::log(model::yarn_original_context / (2.0 * M_PI * rotations)) /
           (2.0 * std::log(model::compressed_rope_base));
  };
  const float low = static_cast<float>(std::max(0.0, std::floor(correction(model::yarn_beta_fast))));
  const float high =
      static_cast<float>(std::min<double>(model::rope_dim - 1, std::ceil(correction(model::yarn_beta_slow))));
  for (size_t i = 0; i < rope_pairs; ++i) {
    const float slow = std::clamp((static_cast<float>(i) - low) / std::max(0.001f, high - low), 0.0f, 1.0f);
    frequencies[i] =
        frequencies[i] / static_cast<float>(model::yarn_factor) * slow + frequencies[i] * (1.0f - slow);
  }
  return frequencies;
}

RopeAngles rope_angles(uint64_t position, const std::array<float, rope_pairs>& frequencies) {
  RopeAngles angles;
  for (size_t i = 0; i < rope_pairs; ++i) {
    const double angle = static_cast<float>(position) * frequencies[i];
    angles.cosine[i] = static_cast<float>(std::cos(angle));
    angles.sine[i] = static_cast<float>(std::sin(angle));
  }
  return angles;
}

void rotate(float* tail, const RopeAngles& angles) {
  for (size_t i = 0; i < rope_pairs; ++i) {
    const float a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * angles.cosine[i] - b * angles.sine[i];
    tail[2 * i + 1] = a * angles.sine[i] + b * angles.cosine[i];
  }
}

void rotate_inverse(float* tail, const RopeAngles& angles) {
  for (size_t i = 0; i < rope_pairs; ++i) {
    const float a = tail[2 * i], b = tail[2 * i + 1];
    tail[2 * i] = a * angles.cosine[i] + b * angles.sine[i];
    tail[2 * i + 1] = b * angles.cosine[i] - a * angles.sine[i];
  }
}

}  // namespace ds4::cpu
