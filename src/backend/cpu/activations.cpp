#include <algorithm>
#include <cassert>

#include "backend/cpu/matmul.hpp"
#include "backend/cpu/quantize_activations.hpp"

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
  const size_t stride = padded_cols(cols_), blocks = stride / 32, used = cols_ / 32;
  for (size_t row = begin; row < end; ++row) {
    float* sums = form.sums.data() + row * 2 * blocks;
    const QuantizedRow out{form.codes.data() + row * stride, form.scales.data() + row * blocks, sums,
                           sums + blocks, form.offsets.data() + row * blocks};
    quantize_row(format, rows_ + row * stride_, cols_, out);
    std::fill(out.codes + cols_, out.codes + stride, int8_t{0});
    std::fill(out.scales + used, out.scales + blocks, 0.0f);
    std::fill(out.sums0 + used, out.sums0 + blocks, 0.0f);
    std::fill(out.sums1 + used, out.sums1 + blocks, 0.0f);
    std::fill(out.offsets + used, out.offsets + blocks, 0);
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
