#include "store/reply_codec.hpp"

#include <cstdint>
#include <cstring>

#include "base/error.hpp"

namespace ds4::store {
namespace {

constexpr std::byte version{1};
constexpr size_t span_header_bytes = 5;  // kind, length

void put_u32(std::vector<std::byte>& out, size_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<std::byte>(value >> shift));
}

void put(std::vector<std::byte>& out, const std::vector<PromptSpan>& spans) {
  put_u32(out, spans.size());
  for (const PromptSpan& span : spans) {
    out.push_back(std::byte{span.trusted});
    put_u32(out, span.text.size());
    const auto text = std::as_bytes(std::span(span.text));
    out.insert(out.end(), text.begin(), text.end());
  }
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool take(size_t count, std::span<const std::byte>& taken) {
    if (count > rest_.size()) return false;
    taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return true;
  }
  bool u32(size_t& value) {
    std::span<const std::byte> bytes;
    if (!take(4, bytes)) return false;
    value = 0;
    for (size_t i = 0; i < 4; ++i) value |= std::to_integer<size_t>(bytes[i]) << (8 * i);
    return true;
  }
  bool spans(std::vector<PromptSpan>& spans) {
    size_t count = 0;
    if (!u32(count) || count > rest_.size() / span_header_bytes) return false;
    spans.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      std::span<const std::byte> kind, text;
      size_t length = 0;
      if (!take(1, kind) || std::to_integer<int>(kind[0]) > 1 || !u32(length) || !take(length, text))
        return false;
      spans.push_back({{reinterpret_cast<const char*>(text.data()), text.size()}, kind[0] == std::byte{1}});
    }
    return true;
  }
  bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> serialize_sampled_reply(const SampledReply& reply) {
  std::vector<std::byte> out{version};
  for (const auto* spans : {&reply.reasoning, &reply.content, &reply.tool_block}) put(out, *spans);
  return out;
}

Result<SampledReply> parse_sampled_reply(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  SampledReply reply;
  std::span<const std::byte> found;
  if (!reader.take(1, found) || found[0] != version || !reader.spans(reply.reasoning) ||
      !reader.spans(reply.content) || !reader.spans(reply.tool_block) || !reader.at_end()) {
    return fail(ErrorCode::format, "a stored reply is damaged or of another version");
  }
  return reply;
}

}  // namespace ds4::store
