// Int8 products for every machine, through Highway (AVX2, NEON, ...).
// Layout: a weight row is decoded to int8 codes (weight_tiles.hpp), then multiplied with every activation
// row. Preconditions: cols a multiple of 32 (256 for K-quants), activations prepared. Cost: codes are widened
// to 16 bits, where products of pairs are exact in 32 bits. Why: no target has to offer an 8-bit dot product,
// and the order is that of int8_kernels.hpp.
#include <algorithm>
#include <cstddef>

#include "backend/cpu/int8_kernels.hpp"
#include "backend/cpu/weight_tiles.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/int8_portable.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ds4::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kInt8Lanes>;
using Scalar = hn::CappedTag<float, 1>;

const char* TargetName() {
  return hwy::TargetName(HWY_TARGET);
}

float MulAddScalar(float a, float b, float c) {
  const Scalar d;
  return hn::GetLane(hn::MulAdd(hn::Set(d, a), hn::Set(d, b), hn::Set(d, c)));
}

/// Exact sum of the 32 products of one block.
HWY_INLINE int32_t BlockSum(const int8_t* HWY_RESTRICT w, const int8_t* HWY_RESTRICT x) {
  const hn::CappedTag<int16_t, 16> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const hn::RepartitionToWide<decltype(d16)> d32;
  auto even = hn::Zero(d32), odd = hn::Zero(d32);
  for (size_t i = 0; i < kInt8Block; i += hn::Lanes(d16)) {
    const auto a = hn::PromoteTo(d16, hn::LoadU(d8, w + i)), b = hn::PromoteTo(d16, hn::LoadU(d8, x + i));
    even = hn::ReorderWidenMulAccumulate(d32, a, b, even, odd);
  }
  return hn::GetLane(hn::SumOfLanes(d32, hn::Add(even, odd)));
}

struct DecodedRow {
  const int8_t* codes;
  const float* scales;
  const float* min0;  // nullptr: no minimum
  const float* min1;
};

struct TokenRow {
  const int8_t* codes;
  const float* scales;
  const float* sums0;
  const float* sums1;
};

float Dot(const DecodedRow& w, const TokenRow& x, size_t blocks) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  HWY_ALIGN float lanes[kInt8Lanes] = {};
  HWY_ALIGN int32_t sums[kInt8Lanes];
  size_t b = 0;
  for (; b + kInt8Lanes <= blocks; b += kInt8Lanes) {
    for (size_t i = 0; i < kInt8Lanes; ++i) {
      sums[i] = BlockSum(w.codes + (b + i) * kInt8Block, x.codes + (b + i) * kInt8Block);
    }
    for (size_t i = 0; i < kInt8Lanes; i += hn::Lanes(d)) {
      const auto scale = hn::Mul(hn::LoadU(d, w.scales + b + i), hn::LoadU(d, x.scales + b + i));
      auto acc = hn::MulAdd(hn::ConvertTo(d, hn::Load(di, sums + i)), scale, hn::Load(d, lanes + i));
      if (w.min0 != nullptr) {
        acc = hn::NegMulAdd(hn::LoadU(d, w.min0 + b + i), hn::LoadU(d, x.sums0 + b + i), acc);
        acc = hn::NegMulAdd(hn::LoadU(d, w.min1 + b + i), hn::LoadU(d, x.sums1 + b + i), acc);
      }
      hn::Store(acc, d, lanes + i);
    }
  }
  // Only Q8_0 and MXFP4 rows can end within a group of eight; these have no minimum.
  for (size_t i = 0; b < blocks; ++b, ++i) {
    const int32_t sum = BlockSum(w.codes + b * kInt8Block, x.codes + b * kInt8Block);
    lanes[i] = MulAddScalar(static_cast<float>(sum), w.scales[b] * x.scales[b], lanes[i]);
  }
  float sum = lanes[0];
  for (size_t i = 1; i < kInt8Lanes; ++i) sum += lanes[i];
  return sum;
}

bool Product(const Int8Product& p) {
  MatmulScratch& scratch = *p.scratch;
  const size_t blocks = p.cols / kInt8Block, stride = p.x->code_stride / kInt8Block;
  if (!scratch.codes.ensure(p.cols) || !scratch.scales.ensure(blocks) || !scratch.mins.ensure(2 * blocks))
    return false;
  const bool mins = has_minimum(p.type);
  float *min0 = scratch.mins.data(), *min1 = min0 + blocks;
  const DecodedRow w{scratch.codes.data(), scratch.scales.data(), mins ? min0 : nullptr, min1};
  for (size_t row = 0; row < p.row_count; ++row) {
    decode_row_codes(p.type, p.rows + row * p.row_bytes, p.cols,
                     {scratch.codes.data(), scratch.scales.data(), min0, min1});
    for (size_t i = 0; i < p.count; ++i) {
      const size_t token = p.token(i);
      const float* sums = p.x->sums + 2 * token * stride;
      p.out[i * p.out_stride + row] =
          Dot(w, {p.x->codes + token * p.x->code_stride, p.x->scales + token * stride, sums, sums + stride},
              blocks);
    }
  }
  return true;
}

}  // namespace ds4::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::cpu {

HWY_EXPORT(Product);
HWY_EXPORT(TargetName);

bool int8_product_portable(const Int8Product& product) {
  return HWY_DYNAMIC_DISPATCH(Product)(product);
}

const char* portable_target_name() {
  return HWY_DYNAMIC_DISPATCH(TargetName)();
}

}  // namespace ds4::cpu
#endif
