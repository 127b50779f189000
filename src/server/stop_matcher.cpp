#include "server/stop_matcher.hpp"

#include <algorithm>
#include <utility>

namespace ds4::server {

std::string StopMatcher::push(std::string_view text) {
  if (hit_) return {};
  if (stops_.empty()) return std::string(text);
  pending_ += text;
  size_t begin = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stops_) {
    const size_t position = pending_.find(stop);
    if (position == std::string::npos) continue;
    if (found == nullptr || position < begin || (position == begin && stop.size() > found->size())) {
      begin = position;
      found = &stop;
    }
  }
  if (found != nullptr) {
    hit_ = *found;
    pending_.resize(begin);
    return std::exchange(pending_, {});
  }
  const size_t keep = partial_length();
  std::string shown = pending_.substr(0, pending_.size() - keep);
  pending_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::flush() {
  return hit_ ? std::string() : std::exchange(pending_, {});
}

size_t StopMatcher::partial_length() const {
  const std::string_view text = pending_;
  size_t longest = 0;
  for (const std::string_view stop : stops_) {
    for (size_t length = std::min(text.size(), stop.size() - 1); length > longest; --length) {
      if (text.ends_with(stop.substr(0, length))) longest = length;
    }
  }
  return longest;
}

}  // namespace ds4::server
