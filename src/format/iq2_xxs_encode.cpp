// IQ2_XXS rows from F32, through Highway (docs/quantize.md §2.5).
// Layout: two blocks at a time, their sixteen groups of 32 in lanes; the entries next to an octet in lanes
// too. Preconditions: finite values of at most largest_encodable(), importance from prepare_importance().
// Cost: 14 scales for each group; an octet that the grid does not hold costs some 20 entries of 8 terms each.
// Why: sums keep the order of a plain loop, and the terms of an octet are computed once for all entries.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "format/f16.hpp"
#include "format/iq2_xxs.hpp"
#include "format/iq2_xxs_codebook.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "format/iq2_xxs_encode.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "format/lane_search.hpp"

HWY_BEFORE_NAMESPACE();
namespace ds4::format::HWY_NAMESPACE {

constexpr size_t kGroup = 32, kGroups = 8, kOctet = 8, kOctetsOfGroup = 4;

/// Sixteen groups. Arrays [32 * kLanes] hold element i of lane l at [i * kLanes + l].
struct GroupSearch {
  HWY_ALIGN float x[kGroup * kLanes];  // magnitudes; one of an octet may be negative
  HWY_ALIGN float weights[kGroup * kLanes];
  HWY_ALIGN float levels[kGroup * kLanes];  // 0, 1, 2, of the best candidate
  HWY_ALIGN float candidate[kGroup * kLanes];
  HWY_ALIGN int32_t octets[kOctetsOfGroup * kLanes];  // of the candidate, in base 3
  HWY_ALIGN float scales[kLanes], try_scales[kLanes];
  HWY_ALIGN float rows_x[kLanes][kGroup];  // the magnitudes again, group after group
  HWY_ALIGN float roots[kLanes][kGroup];   // of the weights
  uint8_t signs[kLanes][kOctetsOfGroup];   // seven bits, the eighth follows
};

/// Magnitudes, signs of even number, and weights of the group in a lane.
inline void LoadGroup(const float* x, const float* importance, float energy, size_t lane,
                      GroupSearch& search) {
  HWY_ALIGN float weights[kGroup], losses[kGroup];
  uint32_t negative = 0;
  const hn::CappedTag<float, kGroup> d;
  for (size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + i);
    const auto weight =
        hn::Mul(hn::LoadU(d, importance + i), hn::Sqrt(hn::Add(hn::Set(d, energy), hn::Mul(v, v))));
    hn::StoreU(weight, d, weights + i);
    hn::StoreU(hn::Sqrt(weight), d, search.roots[lane] + i);
    hn::StoreU(hn::Abs(v), d, search.rows_x[lane] + i);
    hn::StoreU(hn::Mul(hn::Mul(weight, v), v), d, losses + i);
    uint8_t bytes[8] = {};
    uint32_t bits = 0;
    hn::StoreMaskBits(d, hn::Lt(v, hn::Zero(d)), bytes);
    std::memcpy(&bits, bytes, sizeof bits);
    negative |= bits << i;
  }
  for (size_t octet = 0; octet < kOctetsOfGroup; ++octet) {
    float* magnitudes = search.rows_x[lane] + kOctet * octet;
    unsigned signs = negative >> (kOctet * octet) & 255;
    if (std::popcount(signs) % 2 != 0) {
      const float* loss = losses + kOctet * octet;
      const size_t least = static_cast<size_t>(std::min_element(loss, loss + kOctet) - loss);
      magnitudes[least] = -magnitudes[least];
      signs ^= 1u << least;
    }
    search.signs[lane][octet] = static_cast<uint8_t>(signs & 127);
  }
  for (size_t i = 0; i < kGroup; ++i) {
    search.x[i * kLanes + lane] = search.rows_x[lane][i];
    search.weights[i * kLanes + lane] = weights[i];
  }
}

inline void ClearGroup(size_t lane, GroupSearch& search) {
  for (size_t i = 0; i < kGroup; ++i) search.x[i * kLanes + lane] = search.weights[i * kLanes + lane] = 0;
  std::fill_n(search.rows_x[lane], kGroup, 0.0f);
  std::fill_n(search.roots[lane], kGroup, 0.0f);
}

/// The first of `count` grid entries with the smallest sum of root * (scale * (2 level + 1) - x)^2.
inline uint16_t NearestEntry(const uint16_t* entries, size_t count, const float* x, const float* roots,
                             float scale) {
  HWY_ALIGN float terms[kOctet * 4];  // of levels 0, 1, 2 for each element
  const hn::CappedTag<float, kOctet> d8;
  for (size_t i = 0; i < kOctet; i += hn::Lanes(d8)) {
    const auto v = hn::LoadU(d8, x + i), root = hn::LoadU(d8, roots + i);
    const auto term = [&](float level) HWY_ATTR {
      const auto difference = hn::Sub(hn::Set(d8, scale * level), v);
      return hn::Mul(hn::Mul(root, difference), difference);
    };
    const auto high = term(5.0f);
    hn::StoreInterleaved4(term(1.0f), term(3.0f), high, high, d8, terms + 4 * i);
  }
#if HWY_TARGET == HWY_SCALAR
  size_t best = 0;
  float least = INFINITY;
  for (size_t e = 0; e < count; ++e) {
    float sum = 0;
    for (size_t i = 0; i < kOctet; ++i) sum += terms[4 * i + (entries[e] >> (2 * i) & 3)];
    if (sum < least) least = sum, best = e;
  }
  return entries[best];
#else
  const AllLanes d;
  const hn::RebindToSigned<AllLanes> d32;
  const hn::Rebind<uint16_t, AllLanes> d16;
  const auto two_bits = hn::Set(d32, 3);
  HWY_ALIGN float sums[Iq2XxsCodebook::kMostNeighbours];
  auto least = hn::Set(d, INFINITY);
  for (size_t e = 0; e < count; e += hn::Lanes(d)) {
    auto levels = hn::PromoteTo(d32, hn::LoadU(d16, entries + e));
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kOctet; ++i) {
      const auto of_element = hn::LoadDup128(d, terms + 4 * i);
      sum = hn::Add(sum, hn::TableLookupLanes(of_element, hn::IndicesFromVec(d, hn::And(levels, two_bits))));
      levels = hn::ShiftRight<2>(levels);
    }
    hn::Store(sum, d, sums + e);
    least = hn::Min(least, sum);
  }
  const auto smallest = hn::MinOfLanes(d, least);
  for (size_t e = 0; e < count; e += hn::Lanes(d)) {
    const intptr_t lane = hn::FindFirstTrue(d, hn::Eq(hn::Load(d, sums + e), smallest));
    if (lane >= 0) return entries[e + static_cast<size_t>(lane)];
  }
  return entries[0];
#endif
}

/// The candidate levels of all lanes for one inverse scale each, replaced by neighbours where the grid does
/// not hold them. The scale is 1 / inverse unless given.
inline void PlaceOnGrid(const float* inverse_scales, const float* given_scales, GroupSearch& search) {
  const AllLanes d;
  const hn::RebindToSigned<AllLanes> d32;
  const auto one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f), two = hn::Set(d, 2.0f),
             three = hn::Set(d, 3.0f);
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto inverse = hn::LoadU(d, inverse_scales + l);
    hn::StoreU(given_scales ? hn::LoadU(d, given_scales + l) : hn::Div(one, inverse), d,
               search.try_scales + l);
    for (size_t octet = 0; octet < kOctetsOfGroup; ++octet) {
      auto number = hn::Zero(d);
      for (size_t i = kOctet * octet + kOctet; i-- > kOctet * octet;) {
        const auto v = hn::LoadU(d, search.x + i * kLanes + l);
        const auto level = RoundToCode(d, hn::Mul(half, hn::Sub(hn::Mul(inverse, v), one)), two);
        hn::StoreU(level, d, search.candidate + i * kLanes + l);
        number = hn::Add(hn::Mul(number, three), level);
      }
      hn::StoreU(hn::ConvertTo(d32, number), d32, search.octets + octet * kLanes + l);
    }
  }
  const Iq2XxsCodebook& codebook = Iq2XxsCodebook::instance();
  for (size_t octet = 0; octet < kOctetsOfGroup; ++octet) {
    for (size_t l = 0; l < kLanes; ++l) {
      const auto number = static_cast<size_t>(search.octets[octet * kLanes + l]);
      if (codebook.index(number) >= 0) continue;
      const unsigned levels = NearestEntry(codebook.neighbours(number), codebook.neighbour_count(number),
                                           search.rows_x[l] + kOctet * octet,
                                           search.roots[l] + kOctet * octet, search.try_scales[l]);
      float* out = search.candidate + kOctet * octet * kLanes + l;
      for (size_t i = 0; i < kOctet; ++i) out[i * kLanes] = static_cast<float>(levels >> (2 * i) & 3);
    }
  }
}

/// Sums over a candidate: weight * x * q and weight * q^2 with q = 2 level + 1.
template <class D>
HWY_INLINE void SumCandidate(D d, const GroupSearch& search, size_t lane, hn::Vec<D>& sum_xq,
                             hn::Vec<D>& sum_qq) {
  sum_xq = sum_qq = hn::Zero(d);
  for (size_t i = 0; i < kGroup; ++i) {
    const auto level = hn::LoadU(d, search.candidate + i * kLanes + lane);
    const auto weight = hn::LoadU(d, search.weights + i * kLanes + lane);
    const auto q = hn::Add(hn::Add(level, level), hn::Set(d, 1.0f));
    const auto v = hn::LoadU(d, search.x + i * kLanes + lane);
    sum_xq = hn::Add(sum_xq, hn::Mul(hn::Mul(weight, v), q));
    sum_qq = hn::Add(sum_qq, hn::Mul(hn::Mul(weight, q), q));
  }
}

/// Scales and levels of all groups; scale 0 and levels 0 where there is nothing to store.
inline void SearchGroups(GroupSearch& search) {
  const AllLanes d;
  const auto zero = hn::Zero(d), one = hn::Set(d, 1.0f);
  HWY_ALIGN float inverses[kLanes], fitted[kLanes], best[kLanes] = {};
  std::fill_n(search.levels, kGroup * kLanes, 0.0f);
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto scale = FitScale(d, kGroup, kLanes, 4, search.x + l, search.weights + l, search.candidate + l);
    hn::StoreU(scale, d, search.scales + l);
    hn::StoreU(hn::Mul(hn::Set(d, 3.0f), scale), d, fitted + l);
  }
  for (int s = -6; s <= 6; ++s) {
    for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
      const auto full = hn::LoadU(d, fitted + l);
      const auto divisor = hn::IfThenElse(hn::Gt(full, zero), full, one);
      hn::StoreU(hn::Div(hn::Set(d, 5 + 0.1f * static_cast<float>(s)), divisor), d, inverses + l);
    }
    PlaceOnGrid(inverses, nullptr, search);
    for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
      hn::Vec<AllLanes> p, q;
      SumCandidate(d, search, l, p, q);
      const auto previous = hn::LoadU(d, best + l);
      const auto better = hn::And(hn::And(hn::Gt(q, zero), hn::Gt(hn::LoadU(d, fitted + l), zero)),
                                  hn::Gt(hn::Mul(p, p), hn::Mul(previous, q)));
      if (hn::AllFalse(d, better)) continue;
      const auto scale = hn::Div(p, hn::IfThenElse(better, q, one));
      hn::StoreU(hn::IfThenElse(better, scale, hn::LoadU(d, search.scales + l)), d, search.scales + l);
      hn::StoreU(hn::IfThenElse(better, hn::Mul(scale, p), previous), d, best + l);
      for (size_t i = 0; i < kGroup; ++i) {
        const auto level = hn::LoadU(d, search.candidate + i * kLanes + l);
        float* kept = search.levels + i * kLanes + l;
        hn::StoreU(hn::IfThenElse(better, level, hn::LoadU(d, kept)), d, kept);
      }
    }
  }
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto scale = hn::LoadU(d, search.scales + l);
    hn::StoreU(hn::Div(one, hn::IfThenElse(hn::Gt(scale, zero), scale, one)), d, inverses + l);
  }
  PlaceOnGrid(inverses, search.scales, search);
  for (size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    hn::Vec<AllLanes> p, q;
    SumCandidate(d, search, l, p, q);
    const auto previous = hn::LoadU(d, search.scales + l);
    const auto refined = hn::Gt(previous, zero);
    const auto usable = hn::And(refined, hn::Gt(q, zero));
    const auto scale = hn::IfThenElse(usable, hn::Div(p, hn::IfThenElse(usable, q, one)), previous);
    hn::StoreU(scale, d, search.scales + l);
    for (size_t i = 0; i < kGroup; ++i) {
      const auto level = hn::LoadU(d, search.candidate + i * kLanes + l);
      float* kept = search.levels + i * kLanes + l;
      hn::StoreU(hn::IfThenElse(refined, level, hn::LoadU(d, kept)), d, kept);
    }
  }
}

/// The block whose groups begin at `lane`. A group without scale has no signs and the first grid entry.
inline BlockIQ2_XXS PackIq2Xxs(GroupSearch& search, size_t lane) {
  BlockIQ2_XXS block{};
  float largest = 0;
  for (size_t b = 0; b < kGroups; ++b) {
    float& scale = search.scales[lane + b];
    if (scale < 0) {
      scale = -scale;
      for (uint8_t& signs : search.signs[lane + b]) signs = ~signs & 127;
    }
    largest = std::max(largest, scale);
  }
  if (largest == 0) return block;
  const float d = largest / 31;
  const float inverse = 1 / d;
  block.d = f32_to_f16(d);
  const Iq2XxsCodebook& codebook = Iq2XxsCodebook::instance();
  for (size_t b = 0; b < kGroups; ++b) {
    const float scale = search.scales[lane + b];
    const float code = std::clamp(std::nearbyint(0.5f * (inverse * scale - 1)), 0.0f, 15.0f);
    BlockIQ2_XXS::Group& group = block.groups[b];
    uint32_t word = static_cast<uint32_t>(code) << 28;
    for (size_t octet = 0; octet < kOctetsOfGroup && scale > 0; ++octet) {
      size_t number = 0;
      for (size_t i = kOctet; i-- > 0;)
        number = 3 * number + static_cast<size_t>(search.levels[(kOctet * octet + i) * kLanes + lane + b]);
      group.grid[octet] = static_cast<uint8_t>(codebook.index(number));
      word |= uint32_t{search.signs[lane + b][octet]} << (7 * octet);
    }
    group.signs_and_scale = word;
  }
  return block;
}

void EncodeIq2Xxs(const float* row, size_t elements, const float* importance, std::byte* out) {
  constexpr size_t block_elements = BlockIQ2_XXS::kElements;
  GroupSearch search;
  for (size_t base = 0; base < elements; base += 2 * block_elements) {
    const size_t blocks = std::min<size_t>(2, (elements - base) / block_elements);
    for (size_t b = 0; b < blocks; ++b) {
      const float* x = row + base + b * block_elements;
      float squares = 0;
      for (size_t i = 0; i < block_elements; ++i) squares += x[i] * x[i];
      for (size_t g = 0; g < kGroups; ++g) {
        LoadGroup(x + g * kGroup, importance + base + b * block_elements + g * kGroup,
                  squares / block_elements, b * kGroups + g, search);
      }
    }
    for (size_t l = blocks * kGroups; l < kLanes; ++l) ClearGroup(l, search);
    SearchGroups(search);
    for (size_t b = 0; b < blocks; ++b, out += sizeof(BlockIQ2_XXS)) {
      const BlockIQ2_XXS block = PackIq2Xxs(search, b * kGroups);
      std::memcpy(out, &block, sizeof block);
    }
  }
}

}  // namespace ds4::format::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ds4::format {

HWY_EXPORT(EncodeIq2Xxs);

void encode_iq2_xxs(const float* row, size_t elements, const float* importance, std::byte* out) {
  HWY_DYNAMIC_DISPATCH(EncodeIq2Xxs)(row, elements, importance, out);
}

}  // namespace ds4::format
#endif
