// Matrix products of the CPU backend: weights of any format times activations, for one or many tokens.
//
// Every output is one dot product with one accumulation order that depends on the weight format and the
// number of columns only: the same bits whatever the batch size, the row range, the thread or the token's
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned_buffer.hpp"
#include "base/thread_pool.hpp"
#include "format/tensor_type.hpp"

namespace ds4::cpu {

/// A weight matrix in file layout: `rows` outputs, each a row of `cols` inputs.
struct Matrix {
  format::TensorType type = format::TensorType::f32;
  const std::byte* data = nullptr;
  size_t rows = 0;
  size_t cols = 0;

  size_t row_bytes() const { return format::row_bytes(type, cols); }
  /// The rows [begin, begin + count) as a matrix of their own.
  Matrix slice(size_t begin, size_t count) const { return {type, data + begin * row_bytes(), count, cols}; }
};

/// The instruction set that the kernels use on this machine, e.g. "AVX-512 VNNI", "AVX2", "NEON", "scalar".
const char* cpu_target_name();

/// What the activations are rounded to before a product with quantised weights.
enum class ActivationMode {
  quantized,  // int8 blocks matching the weight format: Q8_0 (32) for Q8_0 and MXFP4, Q8_K (256) for Q4_K,
              // Q2_K, IQ2_XXS
  f32,        // not rounded: weights are decoded to F32
};

/// The form a product reads: F32 rows, or int8 codes with one F32 scale for every 32 columns.
enum class ActivationFormat { f32, q8_0, q8_k };

ActivationFormat activation_format(format::TensorType weights, ActivationMode mode);

/// `count` rows of `cols` activations, and their quantised forms, made on demand and kept until assign().
class Activations {
 public:
  explicit Activations(ActivationMode mode = ActivationMode::quantized) : mode_(mode) {}

  /// Refers to the caller's rows (row i starts at rows + i * stride), which must stay unchanged until
  /// reassigned. cols must be a multiple of 32 (of 256 where K-quants are used).
  void assign(const float* rows, size_t count, size_t cols, size_t stride);

  /// Makes the form that `weights` need, if not yet there. Parallel over rows. False if memory is exhausted.
  bool prepare(format::TensorType weights, ThreadPool& pool);
  /// The same without threads.
  bool prepare(format::TensorType weights);

  ActivationMode mode() const { return mode_; }
  size_t count() const { return count_; }
  size_t cols() const { return cols_; }

  /// Pointers into the prepared forms. Scales hold one value per 32 columns in both int8 forms. sums hold
  /// scale * (sum of the codes) for every 16 columns (the term that multiplies the minimum of Q4_K and Q2_K).
  struct View {
    const float* f32 = nullptr;  // [count][f32_stride]
    size_t f32_stride = 0;
    const int8_t* codes = nullptr;  // [count][code_stride]
    const float* scales = nullptr;  // [count][code_stride / 32]
    const float* sums = nullptr;    // [count][2][code_stride / 32]: first and second half of each 32 columns
    const int32_t* offsets =
        nullptr;             // [count][code_stride / 32]: -128 * sum of the codes (see weight_tiles.hpp)
    size_t code_stride = 0;  // cols rounded up to 256; everything beyond cols is 0
  };
  /// Columns [col_begin, ...) as `weights` need them. Precondition: prepared; col_begin a multiple of 32 (256
  /// for K-quants).
  View view(format::TensorType weights, size_t col_begin = 0) const;

 private:
  struct Quantized {
    AlignedBuffer<int8_t> codes;
    AlignedBuffer<float> scales;
    AlignedBuffer<float> sums;
    AlignedBuffer<int32_t> offsets;
    bool ready = false;
  };
  bool reserve(Quantized& form);
  void quantize_rows(ActivationFormat format, Quantized& form, size_t begin, size_t end);

  ActivationMode mode_;
  const float* rows_ = nullptr;
  size_t count_ = 0, cols_ = 0, stride_ = 0;
  Quantized q8_0_, q8_k_;
};

/// Decoded weight tiles of one thread; grows on first use.
struct MatmulScratch {
  AlignedBuffer<int8_t> codes;
  AlignedBuffer<float> scales;
  AlignedBuffer<float> mins;
  AlignedBuffer<float> f32;
  AlignedBuffer<float> activations;
  AlignedBuffer<int16_t> wide_codes;  // for kernels without an 8-bit dot product
  AlignedBuffer<int16_t> wide_activations;
};

/// out[i * out_stride + (r - row_begin)] = w row r . activation row tokens[i], for r in [row_begin, row_end)
/// and i in [0, count). tokens == nullptr means 0, 1, 2, ... Weights are decoded once per tile of rows, not
/// per token. Runs on the calling thread.
bool matmul_rows(const Matrix& w, size_t row_begin, size_t row_end, const Activations::View& x,
                 ActivationMode mode, const uint32_t* tokens, size_t count, float* out, size_t out_stride,
                 MatmulScratch& scratch);

/// out[i * out_stride + r] for all rows and all activation rows; parallel over rows. Prepares `x`.
/// col_begin: first column of x that belongs to this product (for grouped projections).
bool matmul(ThreadPool& pool, std::span<MatmulScratch> scratch, const Matrix& w, Activations& x, float* out,
            size_t out_stride, size_t col_begin = 0);

}  // namespace ds4::cpu
