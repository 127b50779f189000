#include "text/event_writer.hpp"

#include <utility>

#include "text/utf8.hpp"

namespace ds4::text {
namespace {

bool streams(ReplyEvent::Kind kind) {
  using Kind = ReplyEvent::Kind;
  return kind == Kind::reasoning || kind == Kind::content || kind == Kind::call_arguments;
}

}  // namespace

void EventWriter::add(ReplyEvent::Kind kind, size_t call, std::string_view text) {
  if (streams(kind)) {
    if (text.empty()) return;
    if (!events_.empty() && events_.back().kind == kind && events_.back().call == call) {
      events_.back().text += text;
      return;
    }
  }
  events_.push_back({kind, call, std::string(text)});
}

std::vector<ReplyEvent> EventWriter::take() {
  std::vector<ReplyEvent> kept;
  if (!events_.empty() && streams(events_.back().kind)) {
    ReplyEvent& last = events_.back();
    if (const size_t unfinished = unfinished_utf8_bytes(last.text); unfinished > 0) {
      const size_t whole = last.text.size() - unfinished;
      kept.push_back({last.kind, last.call, last.text.substr(whole)});
      last.text.resize(whole);
      if (whole == 0) events_.pop_back();
    }
  }
  return std::exchange(events_, std::move(kept));
}

std::vector<ReplyEvent> EventWriter::take_all() {
  return std::exchange(events_, {});
}

}  // namespace ds4::text
