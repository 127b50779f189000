// Collects the events of a reply, joining neighbours and keeping UTF-8 characters whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/reply_reader.hpp"

namespace ds4::text {

class EventWriter {
 public:
  /// Kinds with streamed text are joined with the event before if that is of the same kind and call.
  void add(ReplyEvent::Kind kind, size_t call, std::string_view text);
  void add(ReplyEvent event) { events_.push_back(std::move(event)); }

  /// What can be passed on now: an unfinished character at the end stays until it is finished, or cannot be.
  std::vector<ReplyEvent> take();
  /// Everything.
  std::vector<ReplyEvent> take_all();

 private:
  std::vector<ReplyEvent> events_;
};

}  // namespace ds4::text
