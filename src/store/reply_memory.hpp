// What the model wrote in earlier turns, byte for byte, so that a conversation which comes back from a client
// renders to what is in a session.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "ds4/chat.hpp"
#include "store/radix_tree.hpp"

namespace ds4::store {

struct ReplyMemoryLimits {
  size_t keys = 100000;  // 0 switches the memory off
  size_t bytes = size_t{512} << 20;
};

/// Replies by key: the ids of their tool calls, and a hash of the transcript that they answered. The least
/// recently used keys go first. Not thread-safe.
class ReplyMemory {
 public:
  explicit ReplyMemory(const ReplyMemoryLimits& limits = {}) : limits_(limits) {}

  void put(std::string_view key, std::shared_ptr<const SampledReply> reply);
  /// Null if unknown.
  std::shared_ptr<const SampledReply> get(std::string_view key);
  bool contains(std::string_view key) const { return index_.find(key) != nullptr; }

  size_t size() const { return entries_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const SampledReply> reply;
  };

  /// A reply with several keys is counted with each of them.
  static size_t bytes_of(const Entry& entry);
  void prune();

  ReplyMemoryLimits limits_;
  std::list<Entry> entries_;  // most recently used first
  RadixTree<std::list<Entry>::iterator> index_;
  size_t bytes_ = 0;
};

}  // namespace ds4::store
