// Finds stop strings in a stream of text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::server {

/// Holds back text only while it may be the beginning of a stop string.
class StopMatcher {
 public:
  /// No empty strings.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Appends text and returns what can be shown. Of several stop strings the one that begins first counts,
  /// of those the longest that is there. After a hit nothing more is shown.
  std::string push(std::string_view text);
  /// The end of the text: what was held back.
  std::string flush();
  /// The stop string that was found.
  const std::optional<std::string>& hit() const { return hit_; }

 private:
  /// Length of the longest end of the pending text that a stop string begins with, all of it excluded.
  size_t partial_length() const;

  std::vector<std::string> stops_;
  std::string pending_;
  std::optional<std::string> hit_;
};

}  // namespace ds4::server
