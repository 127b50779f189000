// States made of hashes: the same ones as tests/data/kvc/make_golden.py makes.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "ds4/state.hpp"
#include "ds4/token.hpp"
#include "store/packed_rows.hpp"

namespace ds4::store {

class MadeState {
 public:
  MadeState(StateLayout layout, uint32_t tokens) : layout_(std::move(layout)) {
    for (uint32_t i = 0; i < tokens; ++i)
      tokens_.push_back(static_cast<Token>(noise(stream(layers() + 1, 0), i) % layout_.vocabulary()));
  }
  MadeState(StateLayout layout, std::vector<Token> tokens)
      : layout_(std::move(layout)), tokens_(std::move(tokens)) {}

  const StateLayout& layout() const { return layout_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  size_t blocks() const { return tokens_.size() / state_block_tokens; }

  std::vector<std::byte> block(size_t number) const { return make(layout_.block(number)); }
  /// Of a drafter: zeros, as for a state that was read from a file.
  std::vector<std::byte> frontier() const {
    const StateParts parts = layout_.frontier(tokens_.size());
    std::vector<std::byte> bytes = make(parts);
    put_numbers(bytes, {parts.logits.offset, 0, 1, parts.logits.row_bytes}, stream(layers(), 0));
    return bytes;
  }

 private:
  size_t layers() const { return layout_.ratios().size(); }
  static uint64_t stream(size_t layer, unsigned kind) { return layer * 16 + kind; }

  /// SplitMix64 of `number` in a stream.
  static uint64_t noise(uint64_t key, uint64_t number) {
    uint64_t z = key * 0x9e3779b97f4a7c15u + number + 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  std::vector<std::byte> make(const StateParts& parts) const {
    std::vector<std::byte> bytes(parts.bytes);
    for (size_t layer = 0; layer < layers(); ++layer) {
      const StateLayerParts& part = parts.layers[layer];
      put_attention(bytes, part.window, stream(layer, 0));
      put_attention(bytes, part.attention, stream(layer, 1));
      put_numbers(bytes, part.values, stream(layer, 2));
      put_numbers(bytes, part.scores, stream(layer, 3));
      put_index(bytes, part.index, stream(layer, 4));
      put_numbers(bytes, part.index_values, stream(layer, 5));
      put_numbers(bytes, part.index_scores, stream(layer, 6));
    }
    return bytes;
  }

  static void put_numbers(std::span<std::byte> bytes, const StatePart& part, uint64_t key) {
    std::byte* next = bytes.data() + part.offset;
    for (size_t row = 0; row < part.count; ++row) {
      for (size_t column = 0; column < part.row_bytes / sizeof(float); ++column, next += sizeof(float)) {
        const uint64_t h = noise(key, (part.first + row) * 1024 + column);
        const auto bits =
            static_cast<uint32_t>((h >> 63) << 31 | (110 + (h >> 32) % 20) << 23 | (h & 0x7fffff));
        std::memcpy(next, &bits, sizeof bits);
      }
    }
  }

  static void put_attention(std::span<std::byte> bytes, const StatePart& part, uint64_t key) {
    for (size_t row = 0; row < part.count; ++row) {
      std::byte* out = bytes.data() + part.offset + row * state_attention_row_bytes;
      const uint64_t base = (part.first + row) * 1024;
      for (size_t i = 0; i < 448; ++i) {
        auto code = static_cast<uint8_t>(noise(key, base + i));
        if ((code & 127) == 127) --code;  // no NaN
        // The largest value of a block is the largest there is, so that the scale follows from the values.
        if (i % 64 == 0) code = static_cast<uint8_t>((code & 128) | 126);
        out[i] = std::byte{code};
      }
      for (size_t i = 448; i < 455; ++i) out[i] = static_cast<std::byte>(106 + noise(key, base + i) % 20);
      for (size_t i = 0; i < 64; ++i) {
        auto half = static_cast<uint16_t>(noise(key, base + 512 + i));
        if ((half & 0x7c00) == 0x7c00) half &= 0xbfff;
        std::memcpy(out + attention_tail_offset + 2 * i, &half, sizeof half);
      }
    }
  }

  static void put_index(std::span<std::byte> bytes, const StatePart& part, uint64_t key) {
    for (size_t row = 0; row < part.count; ++row) {
      std::byte* out = bytes.data() + part.offset + row * state_index_row_bytes;
      const uint64_t base = (part.first + row) * 256;
      for (size_t i = 0; i < 128; ++i) {
        auto code = static_cast<uint8_t>(noise(key, base + i) & 15);
        if (i % 32 == 0) code = static_cast<uint8_t>((code & 8) | 7);
        out[i / 32 * 16 + i % 16] |= static_cast<std::byte>(i % 32 < 16 ? code : code << 4);
      }
      for (size_t i = 0; i < 4; ++i)
        out[64 + i] = static_cast<std::byte>(100 + noise(key, base + 128 + i) % 40);
    }
  }

  StateLayout layout_;
  std::vector<Token> tokens_;
};

}  // namespace ds4::store
