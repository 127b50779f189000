#include <utility>

#include "ds4/tokenizer.hpp"
#include "text/utf8.hpp"

namespace ds4 {
namespace {

constexpr size_t kLongestCharacterBytes = 4;

/// How many bytes at the end belong to a character that is not complete yet.
size_t unfinished_bytes(std::string_view bytes) {
  for (size_t back = 1; back <= bytes.size() && back <= kLongestCharacterBytes + 1; ++back) {
    const auto byte = static_cast<unsigned char>(bytes[bytes.size() - back]);
    const bool continuation = (byte & 0xC0) == 0x80;
    if (!continuation) return text::utf8_length_from_lead(byte) > back ? back : 0;
  }
  return bytes.size() <= kLongestCharacterBytes ? bytes.size() : 0;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  const size_t ready = pending_.size() - unfinished_bytes(pending_);
  std::string shown = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return shown;
}

std::string Utf8Stream::flush() {
  return std::exchange(pending_, {});
}

}  // namespace ds4
