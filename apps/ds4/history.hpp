// The messages typed before, kept in a file.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::cli {

/// One entry per line of the file; a line break inside an entry is stored as a carriage return. Losing the
/// history is no reason to stop, so file errors are ignored.
class History {
 public:
  static constexpr size_t max_entries = 512;
  static constexpr size_t max_entry_bytes = 65536;  // longer ones are remembered, but not stored

  /// Loads the file; an empty path keeps the history in memory only.
  explicit History(std::string path);
  /// $HOME/.ds4_history, or the same in the current folder without HOME.
  static std::string default_path();

  /// Appends to the list and the file, unless it repeats the last entry.
  void add(std::string_view entry);
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  void append_to_file(std::string_view entry) const;
  void rewrite_file() const;

  std::string path_;
  std::vector<std::string> entries_;
};

}  // namespace ds4::cli
