#include <utility>

#include "ds4/tokenizer.hpp"
#include "text/utf8.hpp"

namespace ds4 {

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  const size_t ready = pending_.size() - text::unfinished_utf8_bytes(pending_);
  std::string shown = pending_.substr(0, ready);
  pending_.erase(0, ready);
  return shown;
}

std::string Utf8Stream::flush() {
  return std::exchange(pending_, {});
}

}  // namespace ds4
