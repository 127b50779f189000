// Reading the original's payloads (docs/formats.md §14.2).
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "store/dsv4_layout.hpp"
#include "store/dsv4_payload.hpp"
#include "store/packed_rows.hpp"

namespace ds4::store {
namespace {

/// `bytes`: F32 numbers, at any address.
bool all_finite(std::span<const std::byte> bytes) {
  uint32_t largest = 0;
  for (size_t i = 0; i + sizeof(uint32_t) <= bytes.size(); i += sizeof(uint32_t)) {
    uint32_t bits;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  return largest < 0x7f800000u;
}

/// Values so large that codes of their scale need not be finite, or rotary values that have become
/// infinities.
bool overflowed(const std::byte* row) {
  constexpr size_t exponents = model::nope_dim / model::fp8_block;
  constexpr std::byte largest{246};  // 448 * 2^(246 - 127) is below 2^128
  const std::byte* scale = row + model::nope_dim;
  if (std::any_of(scale, scale + exponents, [](std::byte exponent) { return exponent > largest; }))
    return true;
  uint16_t tail[model::rope_dim];
  std::memcpy(tail, row + attention_tail_offset, sizeof tail);
  return std::any_of(std::begin(tail), std::end(tail),
                     [](uint16_t half) { return (half & 0x7c00u) == 0x7c00u; });
}

}  // namespace

PayloadReader::PayloadReader(const ByteSource& source, uint64_t offset, uint64_t bytes,
                             const StateLayout& layout, std::string name)
    : source_(&source), offset_(offset), bytes_(bytes), layout_(layout), name_(std::move(name)) {}

Result<PayloadReader> PayloadReader::open(const ByteSource& source, uint64_t offset, uint64_t bytes,
                                          const StateLayout& layout, const Limits& limits, std::string name) {
  PayloadReader reader(source, offset, bytes, layout, std::move(name));
  if (offset > source.size() || bytes > source.size() - offset)
    return fail(ErrorCode::format, "{}: the payload is longer than the file", reader.name_);
  DS4_TRY(reader.read_header(limits));
  DS4_TRY(reader.read_tokens());
  DS4_TRY(reader.check_row_counts(limits));
  DS4_TRY(reader.check_end());
  return reader;
}

Result<void> PayloadReader::read(uint64_t at, std::span<std::byte> out, std::string_view what) const {
  if (at > bytes_ || out.size() > bytes_ - at)
    return fail(ErrorCode::format, "{}: the payload ends in {}", name_, what);
  return source_->read(offset_ + at, out);
}

Result<void> PayloadReader::read_header(const Limits& limits) {
  uint32_t fields[payload_header_fields];
  DS4_TRY(read(0, std::as_writable_bytes(std::span(fields)), "its header"));
  DS4_TRY(check_header(fields, limits));
  header_.version = fields[1];
  header_.context = fields[2];
  header_.prefill_chunk = fields[3];
  header_.raw_capacity = fields[4];
  header_.window = fields[5];
  header_.row_capacity = fields[6];
  header_.tokens = fields[7];
  header_.live_rows = fields[12];
  return {};
}

// The size of a writer's chunks (field 3) does not matter here: rows do not depend on it.
Result<void> PayloadReader::check_header(std::span<const uint32_t> fields, const Limits& limits) const {
  const uint32_t version = fields[1], context = fields[2], ring = fields[4], window = fields[5],
                 row_capacity = fields[6], tokens = fields[7], live = fields[12];
  if (fields[0] != payload_magic)
    return fail(ErrorCode::format, "{}: the payload does not begin with DSV4", name_);
  if (version != 1 && version != 2)
    return fail(ErrorCode::unsupported, "{}: payload version {} is not known, only 1 and 2 are", name_,
                version);
  if (tokens == 0) return fail(ErrorCode::format, "{}: the payload holds no tokens", name_);
  if (context > limits.context || tokens >= limits.context || tokens > context)
    return fail(ErrorCode::format, "{}: {} tokens of a context of {} do not fit a context of {} tokens",
                name_, tokens, context, limits.context);
  if (fields[8] != layout_.ratios().size() || fields[9] != model::head_dim ||
      fields[10] != model::index_head_dim || fields[11] != layout_.vocabulary())
    return fail(ErrorCode::format,
                "{}: the payload is of another model: {} layers, rows of {} and {}, vocabulary {}", name_,
                fields[8], fields[9], fields[10], fields[11]);
  if (window != std::min(model::window, context))
    return fail(ErrorCode::format, "{}: the payload has a window of {} tokens in a context of {}", name_,
                window, context);
  if (ring == 0 || live != std::min(tokens, window) || live > ring)
    return fail(ErrorCode::format, "{}: {} raw rows in a ring of {} do not go with {} tokens", name_, live,
                ring, tokens);
  if (row_capacity > limits.context / model::csa_ratio + 2)
    return fail(ErrorCode::format, "{}: room for {} compressed rows is more than a context of {} tokens has",
                name_, row_capacity, limits.context);
  return {};
}

Result<void> PayloadReader::read_tokens() {
  const uint64_t at = payload_tokens_offset, token_bytes = uint64_t{header_.tokens} * sizeof(Token);
  // Before memory is taken for them.
  if (token_bytes > bytes_ - at) return fail(ErrorCode::format, "{}: the payload ends in its tokens", name_);
  tokens_.resize(header_.tokens);
  DS4_TRY(read(at, std::as_writable_bytes(std::span(tokens_)), "its tokens"));
  const auto wrong = std::find_if(tokens_.begin(), tokens_.end(), [&](Token token) {
    return static_cast<uint32_t>(token) >= layout_.vocabulary();
  });
  if (wrong == tokens_.end()) return {};
  return fail(ErrorCode::format, "{}: token {} is {}, but the vocabulary has {}", name_,
              wrong - tokens_.begin(), static_cast<uint32_t>(*wrong), layout_.vocabulary());
}

Result<void> PayloadReader::check_row_counts(const Limits& limits) const {
  const size_t layers = layout_.ratios().size();
  const uint64_t at = payload_counts_offset(layout_, header_.tokens);
  if (at > bytes_) return fail(ErrorCode::format, "{}: the payload ends in its logits", name_);
  std::vector<uint32_t> counts(2 * layers);
  DS4_TRY(read(at, std::as_writable_bytes(std::span(counts)), "its row counts"));
  for (size_t i = 0; i < counts.size(); ++i) {
    const bool index = i >= layers;
    const uint32_t ratio = layout_.ratios()[i % layers];
    const bool rows = index ? ratio == model::csa_ratio : ratio != 0;
    const uint32_t expected = rows ? header_.tokens / ratio : 0;
    const uint64_t capacity = rows ? std::min<uint64_t>(header_.row_capacity, limits.context / ratio + 2) : 0;
    if (counts[i] == expected && expected <= capacity) continue;
    return fail(ErrorCode::format,
                "{}: layer {} has {} {} rows, but {} tokens make {} and there is room for {}", name_,
                i % layers, counts[i], index ? "index" : "compressed", header_.tokens, expected, capacity);
  }
  return {};
}

Result<void> PayloadReader::check_end() const {
  const auto places = payload_places(layout_, header_.tokens);
  for (size_t layer = 0; layer < places.size(); ++layer) {
    if (places[layer].end > bytes_)
      return fail(ErrorCode::format, "{}: the payload ends in layer {}", name_, layer);
  }
  if (places.back().end == bytes_) return {};
  return fail(ErrorCode::format, "{}: {} bytes follow the last layer of the payload", name_,
              bytes_ - places.back().end);
}

Result<void> PayloadReader::pack_rows(uint64_t at, const StatePart& part, size_t layer,
                                      std::span<std::byte> out) const {
  const bool index = part.row_bytes == state_index_row_bytes;
  const size_t dim = index ? model::index_head_dim : model::head_dim;
  const size_t rows_of_piece = payload_piece_bytes / (dim * sizeof(float));
  std::vector<float> piece(std::min(rows_of_piece, part.count) * dim);
  std::byte* next = out.data() + part.offset;
  for (size_t done = 0; done < part.count; done += rows_of_piece) {
    const size_t rows = std::min(rows_of_piece, part.count - done);
    const auto values = std::span(piece).first(rows * dim);
    DS4_TRY(read(at + done * dim * sizeof(float), std::as_writable_bytes(values), "a layer"));
    bool good = all_finite(std::as_bytes(values));
    for (size_t row = 0; good && row < rows; ++row, next += part.row_bytes) {
      if (index) {
        pack_index_row(values.data() + row * dim, next);
      } else {
        pack_attention_row(values.data() + row * dim, next);
        good = !overflowed(next);
      }
    }
    if (!good)
      return fail(ErrorCode::format, "{}: rows of layer {} hold numbers that are not finite or are too large",
                  name_, layer);
  }
  return {};
}

Result<void> PayloadReader::copy_matrix(uint64_t at, const StatePart& part, size_t layer,
                                        std::span<std::byte> out) const {
  const uint64_t first = first_matrix_row(part, layout_.ratios()[layer], header_.tokens);
  const auto rows = out.subspan(part.offset, part.bytes());
  DS4_TRY(read(at + first * part.row_bytes, rows, "a layer"));
  if (all_finite(rows)) return {};
  return fail(ErrorCode::format, "{}: the compressor of layer {} holds numbers that are not finite", name_,
              layer);
}

Result<void> PayloadReader::pack_layers(const StateParts& parts, std::span<std::byte> out) const {
  const auto places = payload_places(layout_, header_.tokens);
  for (size_t layer = 0; layer < places.size(); ++layer) {
    const PayloadPlaces& place = places[layer];
    const StateLayerParts& part = parts.layers[layer];
    DS4_TRY(pack_rows(place.window, part.window, layer, out));
    DS4_TRY(pack_rows(place.rows + part.attention.first * payload_row_bytes, part.attention, layer, out));
    DS4_TRY(copy_matrix(place.values, part.values, layer, out));
    DS4_TRY(copy_matrix(place.scores, part.scores, layer, out));
    DS4_TRY(pack_rows(place.index_rows + part.index.first * payload_index_row_bytes, part.index, layer, out));
    DS4_TRY(copy_matrix(place.index_values, part.index_values, layer, out));
    DS4_TRY(copy_matrix(place.index_scores, part.index_scores, layer, out));
  }
  return {};
}

size_t PayloadReader::blocks() const {
  return tokens_.size() / state_block_tokens;
}

Result<void> PayloadReader::export_block(size_t block, std::span<std::byte> out) const {
  return pack_layers(layout_.block(block), out);
}

Result<void> PayloadReader::export_frontier(std::span<std::byte> out) const {
  const StateParts parts = layout_.frontier(header_.tokens);
  DS4_TRY(pack_layers(parts, out));
  if (layout_.drafter()) {
    std::memset(out.data() + parts.drafter_window.offset, 0, parts.drafter_window.bytes());
    std::memset(out.data() + parts.drafter_streams.offset, 0, parts.drafter_streams.bytes());
  }
  const auto logits = out.subspan(parts.logits.offset, parts.logits.bytes());
  DS4_TRY(read(payload_logits_offset(header_.tokens), logits, "its logits"));
  if (all_finite(logits)) return {};
  return fail(ErrorCode::format, "{}: the logits hold numbers that are not finite", name_);
}

}  // namespace ds4::store
