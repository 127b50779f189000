#include <algorithm>
#include <utility>

#include "ds4/chat.hpp"
#include "text/special_tokens.hpp"

namespace ds4 {
namespace {

/// How many bytes at the end of `text` are the beginning of `tag`, but not all of it.
size_t partial_tag_bytes(std::string_view text, std::string_view tag) {
  size_t length = std::min(text.size(), tag.size() - 1);
  while (length > 0 && !text.ends_with(tag.substr(0, length))) --length;
  return length;
}

}  // namespace

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::push(std::string_view text) {
  pending_ += text;
  return drain(false);
}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::flush() {
  return drain(true);
}

std::vector<ReasoningSplitter::Piece> ReasoningSplitter::drain(bool final) {
  std::vector<Piece> pieces;
  const auto take = [&](size_t bytes) {
    if (bytes > 0) pieces.push_back({pending_.substr(0, bytes), in_reasoning_});
    pending_.erase(0, bytes);
  };
  if (at_start_) {
    const bool undecided =
        pending_.size() < text::kThinkOpen.size() && text::kThinkOpen.starts_with(pending_);
    if (undecided && !final) return pieces;
    if (pending_.starts_with(text::kThinkOpen)) pending_.erase(0, text::kThinkOpen.size());
    at_start_ = false;
  }
  if (in_reasoning_) {
    const size_t close = pending_.find(text::kThinkClose);
    if (close == std::string::npos) {
      take(final ? pending_.size() : pending_.size() - partial_tag_bytes(pending_, text::kThinkClose));
      return pieces;
    }
    take(close);
    pending_.erase(0, text::kThinkClose.size());
    in_reasoning_ = false;
  }
  take(pending_.size());
  return pieces;
}

}  // namespace ds4
