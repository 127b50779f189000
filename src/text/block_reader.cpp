#include "text/block_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/dsml.hpp"
#include "text/json_text.hpp"

namespace ds4::text {
namespace {

using Kind = ReplyEvent::Kind;

/// White space between a misspelled end of a value and the tag that shows it to be one.
constexpr size_t kMostSpaceBehindValue = 64;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\v' || c == '\f';
}

}  // namespace

BlockReader::BlockReader(TagFamily family, bool opened, std::string_view raw, size_t first_call)
    : family_(family),
      place_(opened ? Place::opening_tail : Place::between_tags),
      raw_(raw),
      next_call_(first_call),
      repaired_(!opened) {}

std::string_view BlockReader::use(size_t count) {
  const std::string_view used = bytes_.substr(used_, count);
  used_ += used.size();
  raw_ += used;
  return used;
}

size_t BlockReader::advance(std::string_view bytes, EventWriter& events) {
  bytes_ = bytes;
  used_ = 0;
  while (state_ == State::open && used_ < bytes_.size() && step(events)) {
  }
  bytes_ = {};
  return used_;
}

/// False if more bytes are needed.
bool BlockReader::step(EventWriter& events) {
  switch (place_) {
    case Place::opening_tail: {
      const char c = rest().front();
      if (c != '>' && !is_space(c))
        return break_block("The tag that begins a block of tool calls does not end.", events);
      use(1);
      if (c == '>') place_ = Place::between_tags;
      after_tag_ = true;
      return true;
    }
    case Place::between_tags:
      return between_tags(events);
    case Place::attributes:
      return read_attributes(events);
    case Place::untyped:
      return read_untyped(events);
    case Place::string:
      return read_string(events);
    case Place::json:
      break;
  }
  return read_json(events);
}

bool BlockReader::between_tags(EventWriter& events) {
  const char c = rest().front();
  if (is_space(c) || (c == '>' && after_tag_)) {
    after_tag_ = false;
    use(1);
    return true;
  }
  if (c != '<') return break_block("There is text between the tags of a tool call.", events);
  const TagMatch match = match_tag(rest());
  if (match.state == TagMatch::State::partial) return false;
  if (match.state == TagMatch::State::none)
    return break_block("There is an unknown tag in a tool call.", events);
  return on_tag(match.tag, events);
}

bool BlockReader::on_tag(const DsmlTag& tag, EventWriter& events) {
  if (tag.family != family_) return break_block("The tags of a block are spelled in two ways.", events);
  tag_name_ = tag.name;
  tag_sentinel_ = tag.sentinel;
  if (tag.closing) {
    use(tag.length);
    after_tag_ = true;
    on_closing_tag(tag, events);
    return true;
  }
  if (tag.name == TagName::block) {
    if (in_call_ || !calls_.empty())
      return break_block("A block of tool calls begins inside another one.", events);
    use(tag.length);
    repaired_ = true;
    place_ = Place::opening_tail;
    return true;
  }
  if (tag.name == TagName::parameter && !in_call_) {
    return break_block("A parameter stands outside of a tool call.", events);
  }
  use(tag.length);
  attributes_ = {};
  place_ = Place::attributes;
  return true;
}

void BlockReader::on_closing_tag(const DsmlTag& tag, EventWriter& events) {
  if (in_nested_) {
    end_nested(events);
    if (tag.name == TagName::parameter) return;
  }
  if (tag.name == TagName::parameter) {
    repaired_ = true;  // doubled
    return;
  }
  if (tag.name == TagName::invoke) {
    if (!in_call_) repaired_ = true;
    if (in_call_) end_call(events);
    return;
  }
  if (in_call_) end_call_without_tag(events);
  state_ = State::closed;
  events.add(Kind::block_end, 0, {});
}

bool BlockReader::read_attributes(EventWriter& events) {
  const std::string_view text = rest();
  for (size_t i = 0; i < text.size(); ++i) {
    const AttributeReader::State state = attributes_.feed(text[i]);
    if (state == AttributeReader::State::reading) continue;
    if (state == AttributeReader::State::bad) {
      use(i);
      return break_block("The attributes of a tag cannot be read.", events);
    }
    use(i + 1);
    on_attributes(events);
    return true;
  }
  use(text.size());
  return false;
}

void BlockReader::on_attributes(EventWriter& events) {
  after_tag_ = true;
  if (!attributes_.name() || attributes_.name()->empty()) {
    break_block(tag_name_ == TagName::invoke ? "A tool call has no name." : "A parameter has no name.",
                events);
  } else if (tag_name_ == TagName::invoke) {
    begin_call(events);
  } else if (attributes_.self_closing()) {
    break_block("A parameter has no value.", events);
  } else {
    begin_parameter(events);
  }
}

void BlockReader::begin_call(EventWriter& events) {
  if (in_call_) end_call_without_tag(events);
  in_call_ = true;
  dropped_ = false;
  first_member_ = true;
  parameters_ = 0;
  names_.clear();
  call_ = {"", *attributes_.name(), ""};
  events.add(Kind::call_begin, next_call_, call_.name);
  argue("{", events);
  place_ = Place::between_tags;
  if (attributes_.self_closing()) end_call(events);
}

void BlockReader::begin_parameter(EventWriter& events) {
  parameter_ = *attributes_.name();
  value_close_.assign("</").append(tag_sentinel_).append("parameter>");
  auto& names = in_nested_ ? nested_names_ : names_;
  if (!names.insert(parameter_).second) {
    drop_call(ToolFault::duplicate_parameter,
              fmt::format("The parameter \"{}\" of \"{}\" is given twice.", parameter_, call_.name), events);
  }
  if (!first_member_) argue(",", events);
  first_member_ = false;
  argue(json_quote(parameter_), events);
  argue(":", events);
  json_ = {};
  json_failed_ = false;
  space_.clear();
  const std::string type = attributes_.string().value_or("");
  const bool is_string = type == "true" || type == "True" || type == "TRUE";
  if (is_string || (!attributes_.string() && in_nested_)) {
    place_ = Place::string;
    argue("\"", events);
  } else {
    place_ = attributes_.string() ? Place::json : Place::untyped;
  }
}

bool BlockReader::read_untyped(EventWriter& events) {
  const char c = rest().front();
  if (is_space(c)) {
    space_ += use(1);
    return true;
  }
  if (c == '<') {
    const TagMatch match = match_tag(rest());
    if (match.state == TagMatch::State::partial) return false;
    const DsmlTag& tag = match.tag;
    if (match.state == TagMatch::State::found && tag.name == TagName::parameter && !tag.closing &&
        tag.family == family_) {
      in_nested_ = true;
      nested_names_.clear();
      first_member_ = true;
      argue("{", events);
      place_ = Place::between_tags;
      return true;
    }
  }
  place_ = Place::string;
  argue("\"", events);
  argue(json_escape(space_), events);
  return true;
}

/// Whether `text`, behind a misspelled end of a value, goes on as a block does.
bool BlockReader::follows_value(std::string_view text, bool& partial) const {
  size_t i = 0;
  while (i < text.size() && i <= kMostSpaceBehindValue && is_space(text[i])) ++i;
  if (i > kMostSpaceBehindValue) return false;
  partial = i == text.size();
  if (partial || text[i] != '<') return false;
  const TagMatch match = match_tag(text.substr(i));
  partial = match.state == TagMatch::State::partial;
  if (match.state != TagMatch::State::found) return false;
  const DsmlTag& tag = match.tag;
  if (tag.family != family_) return false;
  switch (tag.name) {
    case TagName::parameter:
      return !tag.closing || in_nested_;
    case TagName::invoke:
      return true;
    case TagName::block:
      break;
  }
  return tag.closing;
}

/// Whether the value ends where `text` begins, with '<'.
BlockReader::ValueEnd BlockReader::value_end(std::string_view text) const {
  const bool in_json_string = place_ == Place::json && !json_failed_ && json_.in_string();
  // The first of two brackets is the last byte of a value rather than a slip.
  if ((place_ == Place::string || in_json_string) && text.starts_with("<<")) return {};
  const TagMatch match = match_tag(text);
  if (match.state == TagMatch::State::partial) return {End::partial};
  const DsmlTag& tag = match.tag;
  if (match.state == TagMatch::State::none || !tag.closing || tag.name != TagName::parameter) return {};
  const std::string_view spelling = text.substr(0, tag.length);
  const bool exact =
      spelling == value_close_ || (family_ == TagFamily::sentinel && spelling == kParameterEnd);
  if (exact && !in_json_string) return {End::found, tag.length, true};
  bool partial = false;
  if (follows_value(text.substr(tag.length), partial)) return {End::found, tag.length, exact};
  return {partial ? End::partial : End::none};
}

void BlockReader::end_value(const ValueEnd& end, EventWriter& events) {
  use(end.length);
  if (!end.exact) repaired_ = true;
  if (place_ == Place::string) argue("\"", events);
  ++parameters_;
  after_tag_ = true;
  place_ = Place::between_tags;
}

bool BlockReader::read_string(EventWriter& events) {
  const size_t plain = std::min(rest().find_first_of("<&"), rest().size());
  if (plain > 0) {
    argue(json_escape(use(plain)), events);
    return true;
  }
  if (rest().front() == '&') {
    if (rest().starts_with(kEscapedParameterEnd)) {
      use(kEscapedParameterEnd.size());
      argue(json_escape(kParameterEnd), events);
      return true;
    }
    if (kEscapedParameterEnd.starts_with(rest())) return false;
  } else {
    const ValueEnd end = value_end(rest());
    if (end.end == End::partial) return false;
    if (end.end == End::found) {
      end_value(end, events);
      return true;
    }
  }
  argue(json_escape(use(1)), events);
  return true;
}

void BlockReader::feed_json(std::string_view bytes, EventWriter& events) {
  if (json_failed_) return;
  std::string minified;
  for (const char c : bytes) {
    if (json_.feed(c, minified)) continue;
    json_failed_ = true;
    break;
  }
  argue(minified, events);
  if (json_failed_) {
    drop_call(
        ToolFault::invalid_json,
        fmt::format("The value of parameter \"{}\" of \"{}\" is not valid JSON.", parameter_, call_.name),
        events);
  }
}

bool BlockReader::read_json(EventWriter& events) {
  const size_t plain = std::min(rest().find('<'), rest().size());
  if (plain > 0) {
    feed_json(use(plain), events);
    return true;
  }
  const ValueEnd end = value_end(rest());
  if (end.end == End::partial) return false;
  if (end.end == End::none) {
    feed_json(use(1), events);
    return true;
  }
  if (json_.empty()) argue("null", events);
  if (!json_failed_ && !json_.empty() && !json_.complete()) feed_json(std::string_view("\0", 1), events);
  end_value(end, events);
  return true;
}

void BlockReader::end_nested(EventWriter& events) {
  argue("}", events);
  in_nested_ = false;
  first_member_ = false;
}

void BlockReader::end_call(EventWriter& events) {
  if (in_nested_) end_nested(events);
  in_call_ = false;
  if (!dropped_) {
    argue("}", events);
    events.add(Kind::call_end, next_call_, {});
    calls_.push_back(std::move(call_));
  }
  ++next_call_;
}

/// A call that has parameters, all of them complete, lacks nothing but its closing tag. One without any may
/// be no more than a beginning.
void BlockReader::end_call_without_tag(EventWriter& events) {
  if (parameters_ == 0) {
    drop_call(ToolFault::bad_markup, fmt::format("The call of \"{}\" does not end.", call_.name), events);
  }
  if (!dropped_) repaired_ = true;
  end_call(events);
}

void BlockReader::set_fault(ToolFault fault, std::string reason) {
  if (fault_ != ToolFault::none) return;
  fault_ = fault;
  fault_reason_ = std::move(reason);
}

void BlockReader::drop_call(ToolFault fault, std::string reason, EventWriter& events) {
  set_fault(fault, std::move(reason));
  if (dropped_) return;
  dropped_ = true;
  events.add(Kind::call_dropped, next_call_, {});
}

bool BlockReader::break_block(std::string reason, EventWriter& events) {
  if (in_call_) {
    drop_call(ToolFault::bad_markup, reason, events);
    end_call(events);
  }
  set_fault(ToolFault::bad_markup, std::move(reason));
  state_ = State::broken;
  return true;
}

void BlockReader::argue(std::string_view json, EventWriter& events) {
  if (dropped_) return;
  call_.arguments += json;
  events.add(Kind::call_arguments, next_call_, json);
}

void BlockReader::finish(std::string_view rest, bool cut, EventWriter& events) {
  if (state_ != State::open) return;
  raw_ += rest;
  if (in_call_) {
    // What is left is the beginning of a tag: of a closing one, or there is more of the call to come.
    const bool ends = rest.empty() || rest.starts_with("</");
    if (!cut && ends && place_ == Place::between_tags && parameters_ > 0) {
      end_call_without_tag(events);
    } else {
      drop_call(ToolFault::unterminated, fmt::format("The call of \"{}\" is cut off.", call_.name), events);
      end_call(events);
    }
  }
  if (calls_.empty()) set_fault(ToolFault::unterminated, "A block of tool calls is cut off.");
  repaired_ = true;
}

SamplingPhase BlockReader::phase(std::string_view rest) const {
  if (state_ != State::open) return SamplingPhase::free;
  const bool in_json_string = place_ == Place::json && !json_failed_ && json_.in_string();
  if (place_ != Place::string && place_ != Place::untyped && !in_json_string) return SamplingPhase::structure;
  if (in_json_string || rest.size() < 2 || rest[0] != '<') return SamplingPhase::payload;
  const bool ending = value_close_.starts_with(rest) || kParameterEnd.starts_with(rest) ||
                      match_tag(rest).state == TagMatch::State::found;
  return ending ? SamplingPhase::structure : SamplingPhase::payload;
}

}  // namespace ds4::text
