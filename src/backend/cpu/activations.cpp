#include <algorithm>
#include <cassert>
#include <cstring>

#include "backend/cpu/matmul.hpp"
#include "format/q8_0.hpp"
#include "format/q8_k.hpp"

namespace ds4::cpu {
namespace {

using format::TensorType;

constexpr size_t kCodeAlignment = 256;

size_t padded_cols(size_t cols) {
  return (cols + kCodeAlignment - 1) / kCodeAlignment * kCodeAlignment;
}

}  // namespace

ActivationFormat activation_format(TensorType weights, ActivationMode mode) {
  if (mode == ActivationMode::f32) return ActivationFormat::f32;
  switch (weights) {
    case TensorType::q8_0:
    case TensorType::mxfp4:
      return ActivationFormat::q8_0;
    case TensorType::q4_k:
    case TensorType::q2_k:
    case TensorType::iq2_xxs:
      return ActivationFormat::q8_k;
    default:
      return ActivationFormat::f32;
  }
}

void Activations::assign(const float* rows, size_t count, size_t cols, size_t stride) {
  assert(cols % 32 == 0);
  rows_ = rows;
  count_ = count;
  cols_ = cols;
  stride_ = stride;
  q8_0_.ready = q8_k_.ready = false;
}

bool Activations::reserve(Quantized& form) {
  const size_t codes = count_ * padded_cols(cols_);
  return form.codes.ensure(codes) && form.scales.ensure(codes / 32) && form.sums.ensure(codes / 16) &&
         form.offsets.ensure(codes / 32);
}

void Activations::quantize_rows(ActivationFormat format, Quantized& form, size_t begin, size_t end) {
  const size_t stride = padded_cols(cols_);
  for (size_t row = begin; row < end; ++row) {
    const float* x = rows_ + row * stride_;
    int8_t* codes = form.codes.data() + row * stride;
    float* scales = form.scales.data() + row * (stride / 32);
    if (format == ActivationFormat::q8_0) {
      format::quantize_activations_q8_0(x, cols_, codes, scales);
    } else {
      for (size_t i = 0; i < cols_; i += format::BlockQ8_K::kElements) {
        format::BlockQ8_K block;
        format::quantize_activations_q8_k(x + i, format::BlockQ8_K::kElements, &block);
        std::memcpy(codes + i, block.q, sizeof block.q);
        std::fill_n(scales + i / 32, format::BlockQ8_K::kElements / 32, float{block.d});
      }
    }
    std::fill(codes + cols_, codes + stride, int8_t{0});
    std::fill(scales + cols_ / 32, scales + stride / 32, 0.0f);
    float* sums = form.sums.data() + row * (stride / 16);
    int32_t* offsets = form.offsets.data() + row * (stride / 32);
    for (size_t b = 0; b < stride / 32; ++b) {
      int32_t halves[2] = {0, 0};
      for (size_t j = 0; j < 32; ++j) halves[j / 16] += codes[32 * b + j];
      sums[b] = scales[b] * static_cast<float>(halves[0]);
      sums[stride / 32 + b] = scales[b] * static_cast<float>(halves[1]);
      offsets[b] = -128 * (halves[0] + halves[1]);
    }
  }
}

bool Activations::prepare(TensorType weights, ThreadPool& pool) {
  const ActivationFormat format = activation_format(weights, mode_);
  if (format == ActivationFormat::f32) return true;
  Quantized& form = format == ActivationFormat::q8_0 ? q8_0_ : q8_k_;
  if (form.ready) return true;
  if (!reserve(form)) return false;
  if (count_ == 1) {
    quantize_rows(format, form, 0, 1);
  } else {
    const size_t grain = std::max<size_t>(1, count_ / (4 * pool.size()));
    pool.parallel_for(count_, grain,
                      [&](size_t begin, size_t end, unsigned) { quantize_rows(format, form, begin, end); });
  }
  form.ready = true;
  return true;
}

bool Activations::prepare(TensorType weights) {
  const ActivationFormat format = activation_format(weights, mode_);
  if (format == ActivationFormat::f32) return true;
  Quantized& form = format == ActivationFormat::q8_0 ? q8_0_ : q8_k_;
  if (form.ready) return true;
  if (!reserve(form)) return false;
  quantize_rows(format, form, 0, count_);
  form.ready = true;
  return true;
}

Activations::View Activations::view(TensorType weights, size_t col_begin) const {
  View view;
  const ActivationFormat format = activation_format(weights, mode_);
  if (format == ActivationFormat::f32) {
    view.f32 = rows_ + col_begin;
    view.f32_stride = stride_;
    return view;
  }
  const Quantized& form = format == ActivationFormat::q8_0 ? q8_0_ : q8_k_;
  assert(form.ready);
  view.codes = form.codes.data() + col_begin;
  view.scales = form.scales.data() + col_begin / 32;
  view.sums = form.sums.data() + col_begin / 32;
  view.offsets = form.offsets.data() + col_begin / 32;
  view.code_stride = padded_cols(cols_);
  return view;
}

}  // namespace ds4::cpu
