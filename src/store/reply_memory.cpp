#include "store/reply_memory.hpp"

#include <utility>

namespace ds4::store {
namespace {

size_t bytes_of(const std::vector<PromptSpan>& spans) {
  size_t bytes = 0;
  for (const PromptSpan& span : spans) bytes += sizeof(PromptSpan) + span.text.capacity();
  return bytes;
}

}  // namespace

size_t ReplyMemory::bytes_of(const Entry& entry) {
  // A node of the list and one of the tree, each with the key.
  return 2 * (entry.key.size() + 64) + sizeof(SampledReply) + store::bytes_of(entry.reply->reasoning) +
         store::bytes_of(entry.reply->content) + store::bytes_of(entry.reply->tool_block);
}

void ReplyMemory::put(std::string_view key, std::shared_ptr<const SampledReply> reply) {
  if (limits_.keys == 0) return;
  if (const auto* known = index_.find(key)) {
    bytes_ -= bytes_of(**known);
    entries_.erase(*known);
  }
  entries_.push_front({std::string(key), std::move(reply)});
  index_.insert(key, entries_.begin());
  bytes_ += bytes_of(entries_.front());
  prune();
}

std::shared_ptr<const SampledReply> ReplyMemory::get(std::string_view key) {
  const auto* known = index_.find(key);
  if (known == nullptr) return nullptr;
  entries_.splice(entries_.begin(), entries_, *known);
  return entries_.front().reply;
}

void ReplyMemory::prune() {
  while (!entries_.empty() && (entries_.size() > limits_.keys || bytes_ > limits_.bytes)) {
    bytes_ -= bytes_of(entries_.back());
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace ds4::store
