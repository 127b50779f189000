// Random weights in every format with their decoded values, and products of them in float64, for the product
// tests.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "backend/cuda/repack/repack.hpp"
#include "device_copy.hpp"
#include "format/f16.hpp"
#include "format/number_formats.hpp"
#include "format/q8_0.hpp"

namespace ds4::cuda {

using format::TensorType;

inline constexpr TensorType every_type[] = {TensorType::f32,     TensorType::f16,  TensorType::bf16,
                                            TensorType::q8_0,    TensorType::q4_k, TensorType::q2_k,
                                            TensorType::iq2_xxs, TensorType::mxfp4};

inline bool is_quantised(TensorType type) {
  return type != TensorType::f32 && type != TensorType::f16 && type != TensorType::bf16;
}

inline uint32_t block_columns(TensorType type) {
  return format::type_traits(type)->block_elements;
}

/// `rows` rows of random blocks: any bits for codes, scales of ordinary size. Plain types hold normal values.
inline std::vector<uint8_t> random_rows(TensorType type, size_t rows, size_t cols, std::mt19937& random) {
  std::vector<uint8_t> bytes(rows * format::row_bytes(type, cols));
  if (!is_quantised(type)) {
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * cols);
    for (float& v : values) v = normal(random);
    format::encode_row(type, values.data(), values.size(), reinterpret_cast<std::byte*>(bytes.data()));
    return bytes;
  }
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
  const auto put_half = [&](uint8_t* at) {
    const float sign = random() % 2 ? 1.0f : -1.0f;
    const uint16_t half = format::f32_to_f16(sign * (0.001f + 0.001f * static_cast<float>(random() % 100)));
    std::memcpy(at, &half, 2);
  };
  const size_t block_bytes = format::type_traits(type)->block_bytes;
  for (size_t at = 0; at < bytes.size(); at += block_bytes) {
    uint8_t* block = bytes.data() + at;
    switch (type) {
      case TensorType::mxfp4:
        block[0] = static_cast<uint8_t>(118 + random() % 10);
        break;
      case TensorType::q2_k:
        put_half(block + 80);
        put_half(block + 82);
        break;
      case TensorType::q4_k:
        put_half(block);
        put_half(block + 2);
        break;
      default:
        put_half(block);
    }
  }
  return bytes;
}

/// A matrix on the device as the engine holds it, and its values.
class TestMatrix {
 public:
  TestMatrix(TensorType type, uint32_t rows, uint32_t cols, std::mt19937& random)
      : raw_(random_rows(type, rows, cols, random)), values_(size_t{rows} * cols) {
    const size_t row_bytes = format::row_bytes(type, cols);
    for (size_t r = 0; r < rows; ++r) {
      format::decode_row(type, reinterpret_cast<const std::byte*>(raw_.data() + r * row_bytes), cols,
                         values_.data() + r * cols);
    }
    device_ = {type, rows, cols, nullptr, nullptr, nullptr};
    if (!is_quantised(type)) {
      quants_ = std::make_unique<DeviceCopy<uint8_t>>(raw_);
      device_.quants = quants_->data();
      return;
    }
    const auto plane = [&](Plane which) {
      return std::make_unique<DeviceCopy<uint8_t>>(plane_bytes(type, rows, cols, which));
    };
    quants_ = plane(Plane::quants);
    scales_ = plane(Plane::scales);
    extras_ = plane(Plane::extras);
    device_.quants = quants_->data();
    device_.scales = scales_->data();
    device_.extras = extras_->data();
    // In two runs, the second at an odd block, as a streaming loader does.
    const size_t blocks = raw_.size() / format::type_traits(type)->block_bytes, first = blocks / 3;
    const DeviceCopy<uint8_t> staged(raw_);
    require(repack(type, staged.data(), 0, first, device_, nullptr));
    require(repack(type, staged.data() + first * format::type_traits(type)->block_bytes, first,
                   blocks - first, device_, nullptr));
    require(cudaDeviceSynchronize());
  }

  const DeviceMatrix& device() const { return device_; }
  const std::vector<uint8_t>& raw() const { return raw_; }
  const float* row(size_t r) const { return values_.data() + r * device_.cols; }
  std::vector<uint8_t> plane(Plane which) const {
    return (which == Plane::quants ? quants_ : which == Plane::scales ? scales_ : extras_)->read();
  }

 private:
  std::vector<uint8_t> raw_;
  std::vector<float> values_;
  std::unique_ptr<DeviceCopy<uint8_t>> quants_, scales_, extras_;
  DeviceMatrix device_;
};

/// Activations on the device, quantised by the CPU, and both sets of values.
class TestActivations {
 public:
  TestActivations(size_t rows, uint32_t stride, std::vector<float> values)
      : values_(std::move(values)), codes_(rows * stride), scales_(rows * stride / 32), stride_(stride) {
    format::quantize_activations_q8_0(values_.data(), values_.size(), codes_.data(), scales_.data());
    f32_ = std::make_unique<DeviceCopy<float>>(values_);
    device_codes_ = std::make_unique<DeviceCopy<int8_t>>(codes_);
    device_scales_ = std::make_unique<DeviceCopy<float>>(scales_);
  }
  TestActivations(size_t rows, uint32_t stride, std::mt19937& random)
      : TestActivations(rows, stride, normal_values(rows * stride, random)) {}

  /// From row `first` on.
  DeviceActivations device(size_t first = 0) const {
    const size_t at = first * stride_;
    return {f32_->data() + at, device_codes_->data() + at, device_scales_->data() + at / 32, stride_};
  }
  /// What weights of `type` are multiplied with.
  double value(TensorType type, size_t row, size_t column) const {
    const size_t at = row * stride_ + column;
    return is_quantised(type) ? double{scales_[at / 32]} * codes_[at] : double{values_[at]};
  }
  const std::vector<int8_t>& codes() const { return codes_; }
  const std::vector<float>& scales() const { return scales_; }
  const DeviceCopy<float>& f32() const { return *f32_; }

 private:
  static std::vector<float> normal_values(size_t count, std::mt19937& random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& v : values) v = normal(random);
    for (size_t i = 32; i < 64 && i < count; ++i) values[i] = 0.0f;  // one block of zeros
    return values;
  }

  std::vector<float> values_;
  std::vector<int8_t> codes_;
  std::vector<float> scales_;
  uint32_t stride_;
  std::unique_ptr<DeviceCopy<float>> f32_;
  std::unique_ptr<DeviceCopy<int8_t>> device_codes_;
  std::unique_ptr<DeviceCopy<float>> device_scales_;
};

/// A product in float64, and the sum of the magnitudes that its error is measured by.
struct Product {
  double value = 0, magnitude = 0;

  void add(const TestMatrix& w, size_t w_row, const TestActivations& x, size_t x_row, size_t column = 0) {
    const float* weights = w.row(w_row);
    for (size_t i = 0; i < w.device().cols; ++i) {
      const double term = weights[i] * x.value(w.device().type, x_row, column + i);
      value += term;
      magnitude += std::abs(term);
    }
  }
};

}  // namespace ds4::cuda
