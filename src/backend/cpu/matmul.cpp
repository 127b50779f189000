#include "backend/cpu/matmul.hpp"

#include <algorithm>
#include <cmath>

#include "backend/cpu/weight_tiles.hpp"
#include "format/number_formats.hpp"

namespace ds4::cpu {
namespace {

constexpr size_t kBlockLanes = 8;

float dot_int8(const int8_t* codes, const float* scales, const float* mins, size_t cols, const int8_t* x,
               const float* x_scales, const float* x_sums) {
  float lanes[kBlockLanes] = {};
  for (size_t b = 0; b < cols / 32; ++b) {
    int32_t products = 0;
    for (size_t j = 32 * b; j < 32 * b + 32; ++j) products += codes[j] * x[j];
    float& lane = lanes[b % kBlockLanes];
    lane += static_cast<float>(products) * (scales[b] * x_scales[b]);
    if (mins != nullptr) lane -= mins[2 * b] * x_sums[2 * b] + mins[2 * b + 1] * x_sums[2 * b + 1];
  }
  float sum = lanes[0];
  for (size_t lane = 1; lane < kBlockLanes; ++lane) sum += lanes[lane];
  return sum;
}

float dot_f32(const float* w, const float* x, size_t cols) {
  float lanes[16] = {};
  for (size_t i = 0; i < cols; ++i) lanes[i % 16] += w[i] * x[i];
  float sum = lanes[0];
  for (size_t lane = 1; lane < 16; ++lane) sum += lanes[lane];
  return sum;
}

}  // namespace

const char* cpu_target_name() {
  return "scalar";
}

void matmul_rows(const Matrix& w, size_t row_begin, size_t row_end, const Activations::View& x,
                 ActivationMode mode, const uint32_t* tokens, size_t count, float* out, size_t out_stride,
                 MatmulScratch& scratch) {
  const bool int8 = activation_format(w.type, mode) != ActivationFormat::f32;
  const bool has_mins = has_minimum(w.type);
  const size_t row_bytes = w.row_bytes();
  scratch.codes.ensure(w.cols);
  scratch.scales.ensure(w.cols / 32);
  scratch.mins.ensure(w.cols / 16);
  scratch.f32.ensure(w.cols);
  for (size_t row = row_begin; row < row_end; ++row) {
    const std::byte* data = w.data + row * row_bytes;
    if (int8) {
      decode_row_codes(w.type, data, w.cols, scratch.codes.data(), scratch.scales.data(),
                       scratch.mins.data());
    } else {
      format::decode_row(w.type, data, w.cols, scratch.f32.data());
    }
    for (size_t i = 0; i < count; ++i) {
      const size_t token = tokens != nullptr ? tokens[i] : i;
      out[i * out_stride + row - row_begin] =
          int8 ? dot_int8(scratch.codes.data(), scratch.scales.data(),
                          has_mins ? scratch.mins.data() : nullptr, w.cols, x.codes + token * x.code_stride,
                          x.scales + token * (x.code_stride / 32), x.sums + token * (x.code_stride / 16))
               : dot_f32(scratch.f32.data(), x.f32 + token * x.f32_stride, w.cols);
    }
  }
}

bool matmul(ThreadPool& pool, std::span<MatmulScratch> scratch, const Matrix& w, Activations& x, float* out,
            size_t out_stride, size_t col_begin) {
  if (!x.prepare(w.type, pool)) return false;
  const Activations::View view = x.view(w.type, col_begin);
  const size_t grain = std::max<size_t>(1, w.rows / (8 * pool.size()));
  pool.parallel_for(w.rows, grain, [&](size_t begin, size_t end, unsigned worker) {
    matmul_rows(w, begin, end, view, x.mode(), nullptr, x.count(), out + begin, out_stride, scratch[worker]);
  });
  return true;
}

}  // namespace ds4::cpu
