#include "history.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/atomic_file.hpp"
#include "common/console.hpp"

namespace ds4::cli {
namespace {

std::string encoded(std::string_view entry) {
  std::string line(entry);
  std::replace(line.begin(), line.end(), '\n', '\r');
  return line + '\n';
}

}  // namespace

std::string History::default_path() {
  const char* home = std::getenv("HOME");
  return (home != nullptr && home[0] != '\0' ? std::string(home) : std::string(".")) + "/.ds4_history";
}

History::History(std::string path) : path_(std::move(path)) {
  struct stat status{};
  if (path_.empty() || ::stat(path_.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  const auto text = read_file(path_);
  if (!text) return;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    std::string entry = text->substr(begin, end - begin);
    std::replace(entry.begin(), entry.end(), '\r', '\n');
    if (!entry.empty()) entries_.push_back(std::move(entry));
    begin = end + 1;
  }
  if (entries_.size() > max_entries) {
    entries_.erase(entries_.begin(), entries_.end() - max_entries);
    rewrite_file();
  }
}

void History::add(std::string_view entry) {
  if (entry.empty() || (!entries_.empty() && entries_.back() == entry)) return;
  entries_.emplace_back(entry);
  if (entries_.size() > max_entries) entries_.erase(entries_.begin());
  if (!path_.empty() && entry.size() <= max_entry_bytes) append_to_file(entry);
}

void History::append_to_file(std::string_view entry) const {
  // O_NONBLOCK: a pipe of this name must not hang the program.
  const int descriptor = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (descriptor < 0) return;
  struct stat status{};
  // What was typed is private, also in a file that was made with other permissions.
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && ::fchmod(descriptor, 0600) == 0) {
    Writer(descriptor).write(encoded(entry));
  }
  ::close(descriptor);
}

void History::rewrite_file() const {
  auto file = AtomicFile::create(path_);
  if (!file) return;
  for (const auto& entry : entries_) {
    if (!file->write(encoded(entry))) return;
  }
  if (file->commit()) ::chmod(path_.c_str(), 0600);
}

}  // namespace ds4::cli
