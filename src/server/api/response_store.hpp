// Finished responses, so that a client can go on from one by its id.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ds4/chat.hpp"

namespace ds4::server::api {

struct StoredResponse {
  std::vector<ChatMessage> messages;  // the conversation with the answer, without instructions
  std::string body;                   // the response as the client got it
  std::vector<std::string> item_ids;  // of its output
};

/// In memory, bounded: the response that was not used for the longest time goes first. Thread-safe.
class ResponseStore {
 public:
  struct Limits {
    size_t responses = 1000;
    size_t bytes = size_t{128} << 20;
  };
  ResponseStore() : ResponseStore(Limits()) {}
  explicit ResponseStore(Limits limits) : limits_(limits) {}

  /// Replaces a response of the same id. One that is larger than the store is not kept.
  void put(std::string id, StoredResponse response);
  /// Null: unknown.
  std::shared_ptr<const StoredResponse> get(std::string_view id);
  /// The response with this item in its output. Null: unknown.
  std::shared_ptr<const StoredResponse> get_of_item(std::string_view item_id);
  /// False: unknown.
  bool erase(std::string_view id);
  size_t size() const;
  size_t bytes() const;

 private:
  struct Entry {
    std::string id;
    size_t bytes = 0;
    std::shared_ptr<const StoredResponse> response;
  };
  using Entries = std::list<Entry>;                                       // used last: in front
  using Index = std::unordered_map<std::string_view, Entries::iterator>;  // keys lie in the entries
  std::shared_ptr<const StoredResponse> get(const Index& index, std::string_view id);
  void remove(Entries::iterator entry);

  Limits limits_;
  mutable std::mutex mutex_;
  Entries entries_;
  Index by_id_, by_item_;
  size_t bytes_ = 0;
};

}  // namespace ds4::server::api
