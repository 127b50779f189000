#include "text/reply_reader.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/block_reader.hpp"
#include "text/dsml_tag.hpp"
#include "text/event_writer.hpp"
#include "text/line_tracker.hpp"
#include "text/special_tokens.hpp"

namespace ds4::text {
namespace {

using Kind = ReplyEvent::Kind;
using MatchState = TagMatch::State;

/// Bytes are taken in pieces, so that looking ahead in what is waiting never costs more than a piece.
constexpr size_t kPieceBytes = 256;
/// White space between `<tool_calls>` and the tag that shows it to be markup.
constexpr size_t kMostSpaceInPlainStart = 64;
/// Stands in an answer for quoted markup, so that what is around it does not join to new markup.
constexpr std::string_view kLeftOut = "…";
constexpr std::string_view kFullBlockOpen = "<｜DSML｜tool_calls";

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

MatchState match_literal(std::string_view text, std::string_view literal) {
  if (text.starts_with(literal)) return MatchState::found;
  return literal.starts_with(text) ? MatchState::partial : MatchState::none;
}

/// Whether a block without the sentinel begins behind the name of its tag: only if the next tag says so too.
MatchState plain_block_follows(std::string_view text) {
  size_t i = 0;
  bool closed = false;
  for (; i < text.size() && i <= kMostSpaceInPlainStart; ++i) {
    if (text[i] == '>' && !closed) {
      closed = true;
    } else if (!is_space(text[i])) {
      break;
    }
  }
  if (i == text.size()) return MatchState::partial;
  if (!closed || text[i] != '<') return MatchState::none;
  const TagMatch next = match_tag(text.substr(i));
  if (next.state != MatchState::found) return next.state;
  const bool fits = next.tag.family == TagFamily::plain &&
                    (next.tag.closing ? next.tag.name == TagName::block : next.tag.name == TagName::invoke);
  return fits ? MatchState::found : MatchState::none;
}

/// How many bytes at the end of `text` may be the beginning of `tag`.
size_t partial_bytes(std::string_view text, std::string_view tag) {
  size_t length = std::min(text.size(), tag.size() - 1);
  while (length > 0 && !text.ends_with(tag.substr(0, length))) --length;
  return length;
}

}  // namespace

class ReplyReader::Impl {
 public:
  explicit Impl(ReplyReaderOptions options)
      : options_(options), place_(options.think ? Place::start : Place::content) {}

  std::vector<ReplyEvent> push(std::string_view bytes) {
    while (!bytes.empty()) {
      pending_ += bytes.substr(0, kPieceBytes);
      bytes.remove_prefix(std::min(kPieceBytes, bytes.size()));
      run();
    }
    return events_.take();
  }

  std::vector<ReplyEvent> finish(bool cut) {
    final_ = true;
    run();
    finish_block(cut);
    emit_space();
    return events_.take_all();
  }

  void end_tools() { options_.tools = false; }

  bool in_reasoning() const {
    return place_ == Place::start || place_ == Place::reasoning ||
           (place_ == Place::doubtful && origin_ == Place::reasoning);
  }
  bool in_block() const { return place_ == Place::block; }
  bool block_closed() const { return place_ == Place::closed; }
  bool block_broken() const { return place_ == Place::broken; }
  bool repaired() const { return result_.repaired_tools; }
  const ParsedReply& result() const { return result_; }

  SamplingPhase phase() const {
    const bool reading = place_ == Place::block || place_ == Place::doubtful;
    return reading ? block_->phase(pending_) : SamplingPhase::free;
  }

 private:
  enum class Place {
    start,  // an opening reasoning tag is swallowed here
    reasoning,
    content,
    doubtful,  // inside markup that may be a quotation; waits in `block_` until that is known
    block,
    closed,  // behind a block; the rest is ignored
    broken,  // behind markup that cannot be read; text is left out from here on
  };

  void run();
  bool step();
  bool read_start();
  bool read_text();
  bool read_tag();
  bool on_tag(const DsmlTag& tag);
  bool on_tag_in_reasoning(const DsmlTag& tag);
  bool read_doubtful();
  bool read_block();
  bool read_broken();
  void open_block(const DsmlTag& tag, bool certain);
  void release(std::string_view unread);
  void adopt_block();
  MatchState block_begins(const DsmlTag& tag) const;
  void finish_block(bool cut);
  void finish_partial_tag();

  std::string_view rest() const { return std::string_view(pending_).substr(used_); }
  std::string_view use(size_t count) {
    const std::string_view used = rest().substr(0, count);
    used_ += used.size();
    return used;
  }
  bool text_is_reasoning() const { return place_ == Place::reasoning; }

  void emit(std::string_view text) {
    (text_is_reasoning() ? result_.reasoning : result_.content) += text;
    events_.add(text_is_reasoning() ? Kind::reasoning : Kind::content, 0, text);
  }
  void emit_space() { emit(std::exchange(space_, {})); }
  void emit_text(size_t count) {
    emit_space();
    line_.feed(rest().substr(0, count));
    emit(use(count));
  }
  void set_fault(ToolFault fault, std::string reason) {
    if (result_.malformed_tools) return;
    result_.malformed_tools = true;
    result_.tool_fault = fault;
    result_.tool_fault_reason = std::move(reason);
  }

  ReplyReaderOptions options_;
  Place place_;
  bool final_ = false;
  std::string pending_;  // not decided yet; short
  size_t used_ = 0;      // of `pending_`
  std::string space_;    // white space that is dropped if calls follow
  LineTracker line_;
  bool reopened_ = false;  // content went back to reasoning: <think> without its end

  std::optional<BlockReader> block_;
  Place origin_ = Place::content;  // of a doubtful block
  EventWriter doubtful_events_;
  std::string behind_;  // white space behind a closed doubtful block
  size_t calls_ = 0;    // begun so far
  bool made_good_ = false;
  bool stray_marker_ = false;  // no call was lost by the fault

  EventWriter events_;
  ParsedReply result_;
};

void ReplyReader::Impl::run() {
  while (used_ < pending_.size() && step()) {
  }
  pending_.erase(0, used_);
  used_ = 0;
}

/// False if more bytes are needed.
bool ReplyReader::Impl::step() {
  switch (place_) {
    case Place::start:
      return read_start();
    case Place::reasoning:
    case Place::content:
      return read_text();
    case Place::doubtful:
      return read_doubtful();
    case Place::block:
      return read_block();
    case Place::broken:
      return read_broken();
    case Place::closed:
      break;
  }
  use(rest().size());
  return true;
}

bool ReplyReader::Impl::read_start() {
  const MatchState open = match_literal(rest(), kThinkOpen);
  if (open == MatchState::partial && !final_) return false;
  if (open == MatchState::found) use(kThinkOpen.size());
  place_ = Place::reasoning;
  return true;
}

bool ReplyReader::Impl::read_text() {
  if (!options_.tools && !text_is_reasoning()) {
    emit(use(rest().size()));
    return true;
  }
  const char c = rest().front();
  if (options_.tools && is_space(c)) {
    line_.feed(rest().substr(0, 1));
    space_ += use(1);
    return true;
  }
  if (c == '<') return read_tag();
  const size_t end = rest().find_first_of(options_.tools ? "< \t\r\n\v\f" : "<");
  emit_text(std::min(end, rest().size()));
  return true;
}

bool ReplyReader::Impl::read_tag() {
  bool partial = false;
  if (options_.think) {
    const MatchState close = match_literal(rest(), kThinkClose);
    if (close == MatchState::found && text_is_reasoning()) {
      emit_space();
      use(kThinkClose.size());
      place_ = Place::content;
      line_ = {};
      return true;
    }
    const MatchState open = text_is_reasoning() ? MatchState::none : match_literal(rest(), kThinkOpen);
    if (open == MatchState::found && !line_.in_code()) reopened_ = true;
    if (close == MatchState::found) reopened_ = false;
    partial = open == MatchState::partial || close == MatchState::partial;
  }
  if (options_.tools) {
    const TagMatch match = match_tag(rest());
    if (match.state == MatchState::found && !match.tag.closing) return on_tag(match.tag);
    partial = partial || match.state == MatchState::partial;
  }
  if (partial && !final_) return false;
  if (partial) finish_partial_tag();
  if (!rest().empty()) emit_text(1);
  return true;
}

/// The reply ends inside a tag. One with the sentinel is no text that anyone should see.
void ReplyReader::Impl::finish_partial_tag() {
  const bool markup =
      rest().find("DSML") != std::string_view::npos && rest().find('/') == std::string_view::npos;
  if (text_is_reasoning() || !markup) return;
  use(rest().size());
  space_.clear();
  set_fault(ToolFault::unterminated, "The reply ends where a block of tool calls begins.");
}

/// Whether a block begins with this tag, at which the rest begins. Without the sentinel it may be any XML,
/// and the tag behind it has to fit.
TagMatch::State ReplyReader::Impl::block_begins(const DsmlTag& tag) const {
  if (tag.name != TagName::block || tag.closing) return MatchState::none;
  if (tag.family == TagFamily::sentinel) return MatchState::found;
  const std::string_view behind = rest().substr(tag.length);
  const MatchState follows = plain_block_follows(behind);
  if (follows != MatchState::partial || !final_) return follows;
  return behind.find('>') == std::string_view::npos ? MatchState::none : MatchState::found;
}

/// An opening tag in the text.
bool ReplyReader::Impl::on_tag(const DsmlTag& tag) {
  if (text_is_reasoning()) return on_tag_in_reasoning(tag);
  const bool quoted = line_.in_code() || reopened_;
  if (tag.family == TagFamily::sentinel) {
    if (quoted && tag.name == TagName::parameter) {
      use(tag.length);
      emit_space();
      emit(kLeftOut);
    } else {
      open_block(tag, !quoted);
    }
    return true;
  }
  const MatchState begins = quoted ? MatchState::none : block_begins(tag);
  if (begins == MatchState::partial) return false;
  if (begins == MatchState::found) {
    open_block(tag, true);
  } else {
    emit_text(1);
  }
  return true;
}

/// A model may forget to close its reasoning before it calls. Only a block in the exact spelling, on a line
/// of its own, is worth to be looked at.
bool ReplyReader::Impl::on_tag_in_reasoning(const DsmlTag& tag) {
  if (rest().starts_with(kFullBlockOpen) && line_.at_line_start() && !line_.in_code()) {
    open_block(tag, false);
  } else {
    emit_text(1);
  }
  return true;
}

void ReplyReader::Impl::open_block(const DsmlTag& tag, bool certain) {
  const bool opened = tag.name == TagName::block;
  block_.emplace(tag.family, opened, opened ? use(tag.length) : std::string_view(), calls_);
  origin_ = place_;
  place_ = certain ? Place::block : Place::doubtful;
}

/// The doubtful block is a quotation, and so is what was used up behind it. In reasoning it is shown; an
/// answer goes on without it.
void ReplyReader::Impl::release(std::string_view unread) {
  place_ = origin_;
  emit_space();
  if (text_is_reasoning()) {
    const std::string quoted = std::string(block_->raw()).append(unread);
    line_.feed(quoted);
    emit(quoted);
  } else {
    emit(kLeftOut);
  }
  line_.feed(behind_);
  space_ += std::exchange(behind_, {});
  doubtful_events_ = {};
  block_.reset();
}

/// A quotation is known by what follows it: a call is the last thing in a reply.
bool ReplyReader::Impl::read_doubtful() {
  const size_t close = options_.think ? rest().find(kThinkClose) : std::string_view::npos;
  const bool closes = close != std::string_view::npos;
  size_t limit = closes ? close : rest().size();
  if (!closes && options_.think && !final_) limit -= partial_bytes(rest(), kThinkClose);
  const size_t used = block_->advance(rest().substr(0, limit), doubtful_events_);
  use(used);
  limit -= used;
  if (block_->state() == BlockReader::State::closed) {
    size_t spaces = 0;
    while (spaces < limit && is_space(rest()[spaces])) ++spaces;
    behind_ += use(spaces);
    limit -= spaces;
  }
  const bool waits = block_->state() == BlockReader::State::open || limit == 0;
  if (block_->state() != BlockReader::State::broken && waits && !closes) return false;
  // A tag that the end of reasoning cuts short is used up all the same, or it would be found again.
  release(block_->raw().empty() ? use(closes ? limit : 1) : std::string_view());
  return true;
}

bool ReplyReader::Impl::read_block() {
  use(block_->advance(rest(), events_));
  if (block_->state() == BlockReader::State::open) return false;
  adopt_block();
  place_ = block_->state() == BlockReader::State::closed ? Place::closed : Place::broken;
  return true;
}

/// Only a new block is of interest.
bool ReplyReader::Impl::read_broken() {
  if (rest().front() != '<') {
    use(std::min(rest().find('<'), rest().size()));
    return true;
  }
  const TagMatch match = match_tag(rest());
  MatchState begins = match.state;
  if (begins == MatchState::found) begins = block_begins(match.tag);
  if (begins == MatchState::partial) return false;
  if (begins == MatchState::none) {
    use(1);
    return true;
  }
  if (std::exchange(stray_marker_, false)) {
    result_.malformed_tools = false;
    result_.tool_fault = ToolFault::none;
    result_.tool_fault_reason.clear();
  }
  made_good_ = true;
  open_block(match.tag, true);
  return true;
}

/// The block counts, as far as it was read.
void ReplyReader::Impl::adopt_block() {
  const bool stray = block_->next_call() == calls_;
  calls_ = block_->next_call();
  for (const ToolCall& call : block_->calls()) result_.tool_calls.push_back(call);
  if (block_->fault() != ToolFault::none && !result_.malformed_tools) {
    set_fault(block_->fault(), block_->fault_reason());
    stray_marker_ = stray;
  }
  made_good_ = made_good_ || block_->repaired();
  // Calls count, so something was made good; without any there is only a fault.
  result_.repaired_tools = made_good_ && !result_.tool_calls.empty();
  const bool as_sampled =
      block_->state() == BlockReader::State::closed && !made_good_ && !result_.malformed_tools;
  if (as_sampled) result_.tool_block = space_ + block_->raw();
  space_.clear();
}

void ReplyReader::Impl::finish_block(bool cut) {
  if (place_ == Place::block) {
    block_->finish(rest(), cut, events_);
    adopt_block();
    place_ = Place::broken;
    pending_.clear();
  }
  while (place_ == Place::doubtful) {
    if (block_->state() == BlockReader::State::closed && !block_->calls().empty()) {
      for (ReplyEvent& event : doubtful_events_.take_all()) events_.add(std::move(event));
      adopt_block();
      result_.repaired_tools = true;
      place_ = Place::closed;
      return;
    }
    const bool lost = origin_ == Place::content && block_->state() == BlockReader::State::open;
    release(block_->raw().empty() ? use(rest().size()) : std::string_view());
    if (lost) {
      set_fault(ToolFault::unterminated, "A block of tool calls is cut off.");
      pending_.clear();
    }
    run();
  }
}

ReplyReader::ReplyReader(ReplyReaderOptions options) : impl_(std::make_unique<Impl>(options)) {}
ReplyReader::ReplyReader(ReplyReader&&) noexcept = default;
ReplyReader& ReplyReader::operator=(ReplyReader&&) noexcept = default;
ReplyReader::~ReplyReader() = default;

std::vector<ReplyEvent> ReplyReader::push(std::string_view bytes) {
  return impl_->push(bytes);
}
std::vector<ReplyEvent> ReplyReader::finish(bool cut) {
  return impl_->finish(cut);
}
void ReplyReader::end_tools() {
  impl_->end_tools();
}
bool ReplyReader::in_reasoning() const {
  return impl_->in_reasoning();
}
bool ReplyReader::reasoning_closed() const {
  return !impl_->in_reasoning();
}
bool ReplyReader::in_block() const {
  return impl_->in_block();
}
bool ReplyReader::block_closed() const {
  return impl_->block_closed();
}
bool ReplyReader::block_broken() const {
  return impl_->block_broken();
}
SamplingPhase ReplyReader::phase() const {
  return impl_->phase();
}
const ParsedReply& ReplyReader::result() const {
  return impl_->result();
}
bool ReplyReader::repaired() const {
  return impl_->repaired();
}

}  // namespace ds4::text
