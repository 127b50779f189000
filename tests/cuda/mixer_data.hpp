// A random mixer of hyper connections on the device, and its mixing weights in float64 (docs/model.md §4).
#pragma once

#include <cmath>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "backend/cuda/hc/hyper_connection.hpp"
#include "product_data.hpp"
#include "values.hpp"

namespace ds4::cuda {

/// What mixing weights may differ by from float64. Mix values times scale and base are of order 1. A sum over
/// 4d columns ends with up to 64 partial sums one after the other: rounding errors of deviation sqrt(64 / 6)
/// = 3.3 units (2^-24) of the sum's own deviation, six times that is 1.2e-6. The rest is for exponentials and
/// divisions, of 2 to 4 units each. pre, post and comb have slopes of at most 1/4, 1/2 and 1, and normalising
/// again removes what a step of Sinkhorn adds.
inline constexpr double mixing_weight_bound = 2e-6;

struct TestMixer {
  TestMatrix fn;
  std::vector<float> scale, base;
  DeviceCopy<float> device_scale, device_base;

  /// `rows`: 24, or 4 for the head.
  TestMixer(TensorType type, uint32_t rows, uint32_t d, std::mt19937& random)
      : fn(type, rows, 4 * d, random),
        scale(normal_values(3, 1.0f, random)),
        base(normal_values(rows, 1.0f, random)),
        device_scale(scale),
        device_base(base) {
    for (float& s : scale) s /= std::sqrt(static_cast<float>(4 * d));  // mix values of order 1
    require(cudaMemcpy(device_scale.data(), scale.data(), 12, cudaMemcpyHostToDevice));
  }

  DeviceMixer device() const { return {fn.device(), device_scale.data(), device_base.data()}; }

  /// pre, post and comb, or pre alone for the head, from streams [4][d].
  std::vector<double> weights(const double* streams) const {
    const size_t rows = fn.device().rows, columns = fn.device().cols;
    const double mean = cpu::reference::sum_of_squares(streams, columns) / static_cast<double>(columns);
    std::vector<double> mix(rows);
    for (size_t k = 0; k < rows; ++k) {
      for (size_t i = 0; i < columns; ++i) mix[k] += double{fn.row(k)[i]} * streams[i];
      mix[k] /= std::sqrt(mean + double{model::norm_epsilon});
    }
    const std::vector<double> scales = wide(scale), bases = wide(base);
    if (rows == 4) {
      const auto pre = cpu::reference::split_head_mix(mix.data(), scales[0], bases.data());
      return {pre.begin(), pre.end()};
    }
    const auto hc = cpu::reference::split_mix(mix.data(), scales.data(), bases.data());
    std::vector<double> all(hc.pre.begin(), hc.pre.end());
    all.insert(all.end(), hc.post.begin(), hc.post.end());
    all.insert(all.end(), hc.comb.begin(), hc.comb.end());
    return all;
  }
};

}  // namespace ds4::cuda
