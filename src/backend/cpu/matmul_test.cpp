#include "backend/cpu/matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cpu/int8_kernels.hpp"
#include "backend/cpu/weight_tiles.hpp"
#include "format/f16.hpp"
#include "format/number_formats.hpp"
#include "format/q8_0.hpp"
#include "format/q8_k.hpp"
#include "support/kernel_checks.hpp"

namespace ds4::cpu {
namespace {

using format::TensorType;
using test::for_every_target;

constexpr TensorType kAllTypes[] = {TensorType::f32,   TensorType::f16,    TensorType::bf16,
                                    TensorType::q8_0,  TensorType::q4_k,   TensorType::q2_k,
                                    TensorType::mxfp4, TensorType::iq2_xxs};
constexpr TensorType kInt8Types[] = {TensorType::q8_0, TensorType::q4_k, TensorType::q2_k, TensorType::mxfp4,
                                     TensorType::iq2_xxs};

/// Random bytes with scales of ordinary size; F32, F16 and BF16 hold encoded normal values.
struct RandomMatrix {
  RandomMatrix(TensorType type, size_t rows, size_t cols, unsigned seed, size_t shift = 0) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const size_t row_bytes = format::row_bytes(type, cols);
    bytes.ensure(rows * row_bytes + shift + 1);
    std::byte* data = bytes.data() + shift;
    const size_t block = format::type_traits(type)->block_bytes;
    for (size_t i = 0; i < rows * row_bytes; ++i) data[i] = static_cast<std::byte>(random());
    for (size_t at = 0; at < rows * row_bytes; at += block) {
      const auto put_scale = [&](size_t offset) {
        const uint16_t half = format::f32_to_f16(0.01f * normal(random));
        std::memcpy(data + at + offset, &half, 2);
      };
      if (type == TensorType::mxfp4) data[at] = static_cast<std::byte>(116 + random() % 10);
      if (type == TensorType::q2_k) put_scale(80), put_scale(82);
      if (type == TensorType::q4_k) put_scale(0), put_scale(2);
      if (type == TensorType::q8_0 || type == TensorType::iq2_xxs) put_scale(0);
    }
    if (type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16) {
      std::vector<float> row(cols);
      for (size_t r = 0; r < rows; ++r) {
        for (float& x : row) x = normal(random);
        format::encode_row(type, row.data(), cols, data + r * row_bytes);
      }
    }
    matrix = {type, data, rows, cols};
  }

  AlignedBuffer<std::byte> bytes;
  Matrix matrix;
};

std::vector<float> random_activations(size_t count, size_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * cols);
  for (size_t i = 0; i < x.size(); ++i) x[i] = normal(random) * (1 + static_cast<float>(i / 32 % 5));
  return x;
}

/// The activations as the product sees them, in F32.
std::vector<float> rounded_activations(ActivationFormat format, const std::vector<float>& x, size_t cols) {
  std::vector<float> out = x;
  for (size_t i = 0; i < x.size(); i += cols) {
    if (format == ActivationFormat::q8_0) {
      std::vector<format::ActivationQ8_0> blocks(cols / 32);
      format::quantize_activations_q8_0(x.data() + i, cols, blocks.data());
      for (size_t j = 0; j < cols; ++j)
        out[i + j] = blocks[j / 32].d * static_cast<float>(blocks[j / 32].q[j % 32]);
    } else if (format == ActivationFormat::q8_k) {
      std::vector<format::BlockQ8_K> blocks(cols / 256);
      format::quantize_activations_q8_k(x.data() + i, cols, blocks.data());
      for (size_t j = 0; j < cols; ++j)
        out[i + j] = blocks[j / 256].d * static_cast<float>(blocks[j / 256].q[j % 256]);
    }
  }
  return out;
}

std::vector<float> product(ThreadPool& pool, const Matrix& w, const std::vector<float>& x, size_t count,
                           ActivationMode mode) {
  Activations activations(mode);
  activations.assign(x.data(), count, w.cols, w.cols);
  std::vector<MatmulScratch> scratch(pool.size());
  std::vector<float> out(count * w.rows, NAN);
  EXPECT_TRUE(matmul(pool, scratch, w, activations, out.data(), w.rows));
  return out;
}

bool same_bits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

bool has_fma() {
  const std::string target = cpu_target_name();
  return target == "AVX-512 VNNI" || target == "AVX2" || target == "NEON";
}

struct Shape {
  size_t rows, cols, count;
};

TEST(Matmul, AgreesWithDoublePrecision) {
  for_every_target([] {
    ThreadPool pool(2);
    const Shape shapes[] = {{4, 256, 1},   {5, 256, 3},    {24, 1024, 1},  {17, 512, 2},  {16, 2304, 8},
                            {37, 768, 13}, {100, 4096, 9}, {33, 1280, 29}, {4, 64, 1},    {9, 64, 17},
                            {20, 96, 7},   {31, 128, 5},   {18, 352, 1},   {18, 352, 16}, {7, 32, 3}};
    for (const TensorType type : kAllTypes) {
      for (const ActivationMode mode : {ActivationMode::quantized, ActivationMode::f32}) {
        for (const Shape& s : shapes) {
          if (s.cols % format::type_traits(type)->block_elements != 0) continue;
          // One byte off for the block formats: nothing may depend on their alignment.
          const bool blocks = format::type_traits(type)->block_elements > 1;
          const RandomMatrix w(type, s.rows, s.cols, 1, blocks ? 1 : 0);
          const auto x = random_activations(s.count, s.cols, 2);
          const auto rounded = rounded_activations(activation_format(type, mode), x, s.cols);
          const auto actual = product(pool, w.matrix, x, s.count, mode);
          std::vector<float> row(s.cols);
          for (size_t r = 0; r < s.rows; ++r) {
            format::decode_row(type, w.matrix.data + r * w.matrix.row_bytes(), s.cols, row.data());
            for (size_t t = 0; t < s.count; ++t) {
              double expected = 0, magnitude = 0;
              for (size_t c = 0; c < s.cols; ++c) {
                const double value = double{row[c]} * rounded[t * s.cols + c];
                expected += value;
                magnitude += std::fabs(value);
              }
              ASSERT_NEAR(actual[t * s.rows + r], expected, 1e-6 * magnitude)
                  << format::type_name(type) << " row " << r << " token " << t << " of " << s.rows << "x"
                  << s.cols << "x" << s.count << (mode == ActivationMode::f32 ? " f32" : "");
            }
          }
        }
      }
    }
  });
}

// The order that int8_kernels.hpp states, in plain loops with the C library's fma.
TEST(Matmul, Int8OrderIsTheStatedOne) {
  for_every_target([] {
    if (!has_fma()) return;  // such targets round twice
    ThreadPool pool(1);
    for (const TensorType type : kInt8Types) {
      for (const size_t cols : {size_t{64}, size_t{352}, size_t{256}, size_t{1280}}) {
        if (cols % format::type_traits(type)->block_elements != 0) continue;
        const size_t rows = 19, count = 11, blocks = cols / 32;
        const RandomMatrix w(type, rows, cols, 3);
        const auto x = random_activations(count, cols, 4);
        const auto actual = product(pool, w.matrix, x, count, ActivationMode::quantized);
        Activations activations;
        activations.assign(x.data(), count, cols, cols);
        ASSERT_TRUE(activations.prepare(type));
        const auto view = activations.view(type);
        std::vector<int8_t> codes(cols);
        std::vector<float> scales(blocks), min0(blocks), min1(blocks);
        for (size_t r = 0; r < rows; ++r) {
          decode_row_codes(type, w.matrix.data + r * w.matrix.row_bytes(), cols,
                           {codes.data(), scales.data(), min0.data(), min1.data()});
          for (size_t t = 0; t < count; ++t) {
            float lanes[8] = {};
            const float* x_scales = view.scales + t * view.code_stride / 32;
            const float* sums = view.sums + t * view.code_stride / 16;
            for (size_t b = 0; b < blocks; ++b) {
              int32_t sum = 0;
              for (size_t c = 32 * b; c < 32 * b + 32; ++c)
                sum += codes[c] * view.codes[t * view.code_stride + c];
              float& lane = lanes[b % 8];
              lane = std::fma(static_cast<float>(sum), scales[b] * x_scales[b], lane);
              if (has_minimum(type)) {
                lane = std::fma(-min0[b], sums[b], lane);
                lane = std::fma(-min1[b], sums[view.code_stride / 32 + b], lane);
              }
            }
            float expected = lanes[0];
            for (int i = 1; i < 8; ++i) expected += lanes[i];
            ASSERT_TRUE(same_bits(&actual[t * rows + r], &expected, 1))
                << format::type_name(type) << " cols " << cols << " row " << r << " token " << t << ": "
                << actual[t * rows + r] << " instead of " << expected;
          }
        }
      }
    }
  });
}

// The order that f32_kernels.hpp states, likewise; the columns span several panels of the kernel.
TEST(Matmul, F32OrderIsTheStatedOne) {
  for_every_target([] {
    if (!has_fma()) return;  // such targets round twice
    ThreadPool pool(1);
    for (const TensorType type : kAllTypes) {
      for (const size_t cols : {size_t{96}, size_t{352}, size_t{256}, size_t{1280}}) {
        if (cols % format::type_traits(type)->block_elements != 0) continue;
        const size_t rows = 19;
        const RandomMatrix w(type, rows, cols, 13);
        for (const size_t count : {1, 5, 11}) {
          const auto x = random_activations(count, cols, 14);
          const auto actual = product(pool, w.matrix, x, count, ActivationMode::f32);
          std::vector<float> row(cols);
          for (size_t r = 0; r < rows; ++r) {
            format::decode_row(type, w.matrix.data + r * w.matrix.row_bytes(), cols, row.data());
            for (size_t t = 0; t < count; ++t) {
              float lanes[16] = {};
              for (size_t c = 0; c < cols; ++c)
                lanes[c % 16] = std::fma(row[c], x[t * cols + c], lanes[c % 16]);
              for (size_t half = 8; half > 0; half /= 2) {
                for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
              }
              ASSERT_TRUE(same_bits(&actual[t * rows + r], &lanes[0], 1))
                  << format::type_name(type) << " cols " << cols << " row " << r << " token " << t << " of "
                  << count << ": " << actual[t * rows + r] << " instead of " << lanes[0];
            }
          }
        }
      }
    }
  });
}

TEST(Matmul, SameBitsForAnyBatchRangeThreadAndGather) {
  for_every_target([] {
    ThreadPool one(1), two(2), three(3);
    for (const TensorType type : kAllTypes) {
      for (const ActivationMode mode : {ActivationMode::quantized, ActivationMode::f32}) {
        for (const size_t cols : {size_t{128}, size_t{768}, size_t{2048}}) {
          if (cols % format::type_traits(type)->block_elements != 0) continue;
          const size_t rows = 53, count = 27;
          const RandomMatrix w(type, rows, cols, 5);
          const auto x = random_activations(count, cols, 6);
          const auto all = product(one, w.matrix, x, count, mode);
          const std::string what = std::string(format::type_name(type)) + " cols " + std::to_string(cols);
          for (ThreadPool* pool : {&two, &three}) {
            const auto again = product(*pool, w.matrix, x, count, mode);
            ASSERT_TRUE(same_bits(again.data(), all.data(), all.size())) << what;
          }
          for (size_t t = 0; t < count; ++t) {
            const std::vector<float> row(x.begin() + t * cols, x.begin() + (t + 1) * cols);
            const auto single = product(two, w.matrix, row, 1, mode);
            ASSERT_TRUE(same_bits(single.data(), all.data() + t * rows, rows)) << what << " token " << t;
          }
          Activations activations(mode);
          activations.assign(x.data(), count, cols, cols);
          ASSERT_TRUE(activations.prepare(type, two));
          const auto view = activations.view(type);
          MatmulScratch scratch;
          const std::vector<uint32_t> gather = {26, 3, 3, 11, 0, 7, 19, 22, 1, 26, 14};
          for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 53}, {7, 9}, {13, 47}, {52, 53}}) {
            for (size_t n = 1; n <= gather.size(); ++n) {
              std::vector<float> out(n * (end - begin + 3), NAN);
              const size_t stride = end - begin + 3;
              ASSERT_TRUE(matmul_rows(w.matrix, begin, end, view, mode, gather.data(), n, out.data(), stride,
                                      scratch));
              for (size_t i = 0; i < n; ++i) {
                ASSERT_TRUE(same_bits(&out[i * stride], &all[gather[i] * rows + begin], end - begin))
                    << what << " rows " << begin << ".." << end << " of " << n << " tokens";
                ASSERT_TRUE(std::isnan(out[i * stride + end - begin])) << what << ": wrote beyond its rows";
              }
            }
          }
        }
      }
    }
  });
}

// The vector code against the plain loops of the formats: zero blocks, ties, negative extremes, tiny values.
TEST(Activations, SameCodesAsTheFormats) {
  const size_t cols = 1024, count = 5;
  auto x = random_activations(count, cols, 11);
  std::fill_n(x.begin() + 256, 256, 0.0f);
  for (size_t i = 512; i < 768; ++i) x[i] = static_cast<float>(i % 17) - 8.5f;
  x[512] = -127.0f, x[600] = 127.0f;
  std::fill_n(x.begin() + 1024, 64, 1e-44f);
  Activations activations;
  activations.assign(x.data(), count, cols, cols);
  for (const auto type : {TensorType::q8_0, TensorType::q2_k}) {
    ASSERT_TRUE(activations.prepare(type));
    const auto view = activations.view(type);
    const auto rounded = rounded_activations(activation_format(type, ActivationMode::quantized), x, cols);
    for (size_t i = 0; i < x.size(); ++i) {
      const float value = view.scales[i / 32] * static_cast<float>(view.codes[i]);
      ASSERT_TRUE(same_bits(&value, &rounded[i], 1) || (value == 0 && rounded[i] == 0)) << i;
    }
    for (size_t b = 0; b < x.size() / 32; ++b) {
      int sums[2] = {0, 0};
      for (size_t i = 0; i < 32; ++i) sums[i / 16] += view.codes[32 * b + i];
      const size_t token = b / (cols / 32), at = token * 2 * (cols / 32) + b % (cols / 32);
      EXPECT_EQ(view.sums[at], view.scales[b] * static_cast<float>(sums[0]));
      EXPECT_EQ(view.sums[at + cols / 32], view.scales[b] * static_cast<float>(sums[1]));
      EXPECT_EQ(view.offsets[b], -128 * (sums[0] + sums[1]));
    }
  }
}

TEST(Matmul, PortableKernelsGiveTheSameBits) {
  if (!has_avx512_vnni()) GTEST_SKIP() << "no AVX-512 VNNI here: the portable kernels are the only ones";
  for (const TensorType type : kInt8Types) {
    for (const size_t count : {1, 3, 5, 13}) {
      const size_t rows = 21, cols = 1280;
      const RandomMatrix w(type, rows, cols, 7);
      const auto x = random_activations(count, cols, 8);
      Activations activations;
      activations.assign(x.data(), count, cols, cols);
      ASSERT_TRUE(activations.prepare(type));
      const auto view = activations.view(type);
      MatmulScratch scratch;
      std::vector<float> fast(rows * count), portable(rows * count);
      Int8Product p{type,    w.matrix.data, w.matrix.row_bytes(), rows, cols,    &view,
                    nullptr, count,         fast.data(),          rows, &scratch};
      ASSERT_TRUE(int8_product_avx512(p));
      p.out = portable.data();
      ASSERT_TRUE(int8_product_portable(p));
      EXPECT_TRUE(same_bits(fast.data(), portable.data(), fast.size())) << format::type_name(type);
    }
  }
}

// Codes at the ends of their range, and rows of the largest activations: sums must stay exact.
TEST(Matmul, ExtremeCodes) {
  ThreadPool pool(1);
  const size_t cols = 512, rows = 3;
  std::vector<std::byte> bytes(rows * format::row_bytes(TensorType::q8_0, cols));
  for (size_t b = 0; b < rows * cols / 32; ++b) {
    const uint16_t one = format::f32_to_f16(1.0f);
    std::memcpy(&bytes[34 * b], &one, 2);
    std::memset(&bytes[34 * b + 2], b < cols / 32 ? -128 : 127, 32);
  }
  const Matrix w{TensorType::q8_0, bytes.data(), rows, cols};
  for (const float sign : {1.0f, -1.0f}) {
    for (const size_t count : {size_t{1}, size_t{9}}) {
      const std::vector<float> x(cols * count, 127.0f * sign);
      const auto out = product(pool, w, x, count, ActivationMode::quantized);
      for (size_t t = 0; t < count; ++t) {
        EXPECT_EQ(out[t * rows], -128.0f * 127.0f * sign * 512);
        EXPECT_EQ(out[t * rows + 1], 127.0f * 127.0f * sign * 512);
      }
    }
  }
}

// Rounding activations to 8 bits must not hide that something went wrong before.
TEST(Matmul, WhatIsNotFiniteStaysSo) {
  ThreadPool pool(1);
  const size_t cols = 512, rows = 5, count = 3;
  for (const TensorType type : kAllTypes) {
    const RandomMatrix w(type, rows, cols, 5);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t place : {0u, 31u, 300u, 511u}) {
        auto x = random_activations(count, cols, 6);
        x[cols + place] = bad;
        const auto out = product(pool, w.matrix, x, count, ActivationMode::quantized);
        for (size_t r = 0; r < rows; ++r) {
          EXPECT_TRUE(std::isfinite(out[r])) << format::type_name(type);
          EXPECT_FALSE(std::isfinite(out[rows + r])) << format::type_name(type) << " " << bad << " " << place;
          EXPECT_TRUE(std::isfinite(out[2 * rows + r])) << format::type_name(type);
        }
      }
    }
  }
}

TEST(Matmul, ColumnRangesOfTheActivations) {
  ThreadPool pool(2);
  const size_t cols = 96, groups = 3, count = 6, rows = 8;
  const RandomMatrix w(TensorType::q8_0, rows, cols, 9);
  const auto x = random_activations(count, cols * groups, 10);
  Activations activations;
  activations.assign(x.data(), count, cols * groups, cols * groups);
  std::vector<MatmulScratch> scratch(pool.size());
  for (size_t g = 0; g < groups; ++g) {
    std::vector<float> part, out(count * rows);
    for (size_t t = 0; t < count; ++t) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>((t * groups + g) * cols);
      part.insert(part.end(), begin, begin + cols);
    }
    ASSERT_TRUE(matmul(pool, scratch, w.matrix, activations, out.data(), rows, g * cols));
    const auto expected = product(pool, w.matrix, part, count, ActivationMode::quantized);
    EXPECT_TRUE(same_bits(out.data(), expected.data(), out.size())) << "group " << g;
  }
}

}  // namespace
}  // namespace ds4::cpu
