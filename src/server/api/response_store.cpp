#include "server/api/response_store.hpp"

namespace ds4::server::api {
namespace {

size_t size_bytes(const StoredResponse& response) {
  size_t bytes = sizeof(StoredResponse) + response.body.size();
  for (const ChatMessage& message : response.messages) {
    bytes +=
        sizeof(ChatMessage) + message.content.size() + message.reasoning.size() + message.tool_call_id.size();
    for (const ToolCall& call : message.tool_calls) {
      bytes += sizeof(ToolCall) + call.id.size() + call.name.size() + call.arguments.size();
    }
  }
  for (const std::string& id : response.item_ids) bytes += sizeof(std::string) + id.size();
  return bytes;
}

}  // namespace

void ResponseStore::put(std::string id, StoredResponse response) {
  const size_t bytes = size_bytes(response) + id.size();
  const std::lock_guard lock(mutex_);
  if (const auto known = by_id_.find(id); known != by_id_.end()) remove(known->second);
  if (bytes > limits_.bytes || limits_.responses == 0) return;
  while (entries_.size() >= limits_.responses || bytes_ + bytes > limits_.bytes)
    remove(std::prev(entries_.end()));
  entries_.push_front({std::move(id), bytes, std::make_shared<const StoredResponse>(std::move(response))});
  by_id_.emplace(entries_.front().id, entries_.begin());
  for (const std::string& item : entries_.front().response->item_ids)
    by_item_.emplace(item, entries_.begin());
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::get(std::string_view id) {
  return get(by_id_, id);
}

std::shared_ptr<const StoredResponse> ResponseStore::get_of_item(std::string_view item_id) {
  return get(by_item_, item_id);
}

std::shared_ptr<const StoredResponse> ResponseStore::get(const Index& index, std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto known = index.find(id);
  if (known == index.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, known->second);
  return known->second->response;
}

bool ResponseStore::erase(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto known = by_id_.find(id);
  if (known == by_id_.end()) return false;
  remove(known->second);
  return true;
}

size_t ResponseStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponseStore::remove(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->id);
  for (const std::string& item : entry->response->item_ids) {
    const auto known = by_item_.find(item);
    if (known != by_item_.end() && known->second == entry) by_item_.erase(known);
  }
  entries_.erase(entry);
}

}  // namespace ds4::server::api
