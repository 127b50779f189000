// Reads one block of tool calls while its bytes arrive (docs/chat.md §6.3).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ds4/chat.hpp"
#include "text/dsml_tag.hpp"
#include "text/event_writer.hpp"
#include "text/json_stream.hpp"
#include "text/reply_reader.hpp"

namespace ds4::text {

class BlockReader {
 public:
  /// `opened`: the name of the block's opening tag has been read (`raw`); otherwise the tag is missing, and
  /// the first call comes next. Calls are numbered from `first_call`.
  BlockReader(TagFamily family, bool opened, std::string_view raw, size_t first_call);

  enum class State { open, closed, broken };
  State state() const { return state_; }

  /// Reads as far as `bytes` allow a decision and returns how many were used. The rest is to come again with
  /// more behind it. Does nothing once the block is closed or broken.
  size_t advance(std::string_view bytes, EventWriter& events);
  /// Nothing comes behind `rest`: completes the open call if only end tags are missing, or drops it.
  void finish(std::string_view rest, bool cut, EventWriter& events);

  /// `rest`: what advance() has not used yet.
  SamplingPhase phase(std::string_view rest) const;

  /// Everything used so far.
  const std::string& raw() const { return raw_; }
  const std::vector<ToolCall>& calls() const { return calls_; }
  size_t next_call() const { return next_call_; }
  bool repaired() const { return repaired_; }
  ToolFault fault() const { return fault_; }
  const std::string& fault_reason() const { return fault_reason_; }

 private:
  enum class Place {
    opening_tail,  // between the name of the block's tag and its '>'
    between_tags,
    attributes,  // of an opening tag
    untyped,     // white space of a value that is a string or a list of parameters
    string,
    json,
  };
  enum class End { none, partial, found };
  struct ValueEnd {
    End end = End::none;
    size_t length = 0;
    bool exact = false;
  };

  bool step(EventWriter& events);
  bool between_tags(EventWriter& events);
  bool on_tag(const DsmlTag& tag, EventWriter& events);
  void on_closing_tag(const DsmlTag& tag, EventWriter& events);
  bool read_attributes(EventWriter& events);
  void on_attributes(EventWriter& events);
  void begin_call(EventWriter& events);
  void begin_parameter(EventWriter& events);
  bool read_untyped(EventWriter& events);
  bool read_string(EventWriter& events);
  bool read_json(EventWriter& events);
  void feed_json(std::string_view bytes, EventWriter& events);
  void end_value(const ValueEnd& end, EventWriter& events);
  void end_nested(EventWriter& events);

  ValueEnd value_end(std::string_view text) const;
  bool follows_value(std::string_view text, bool& partial) const;

  void end_call(EventWriter& events);
  void end_call_without_tag(EventWriter& events);
  void drop_call(ToolFault fault, std::string reason, EventWriter& events);
  bool break_block(std::string reason, EventWriter& events);
  void set_fault(ToolFault fault, std::string reason);
  void argue(std::string_view json, EventWriter& events);
  std::string_view rest() const { return bytes_.substr(used_); }
  std::string_view use(size_t count);

  TagFamily family_;
  State state_ = State::open;
  Place place_;
  std::string_view bytes_;  // of the running advance()
  size_t used_ = 0;         // of those
  std::string raw_;
  bool after_tag_ = false;  // a doubled '>' is skipped here

  AttributeReader attributes_;
  TagName tag_name_ = TagName::invoke;
  std::string tag_sentinel_;

  bool in_call_ = false;
  bool dropped_ = false;  // the call does not count any more; its markup is still followed
  bool in_nested_ = false;
  size_t parameters_ = 0;     // complete ones of the call
  bool first_member_ = true;  // of the object being written
  size_t next_call_;
  ToolCall call_;
  std::unordered_set<std::string> names_, nested_names_;

  std::string parameter_;    // name
  std::string value_close_;  // the closing tag that mirrors the opening one
  std::string space_;        // before an untyped value
  JsonStream json_;
  bool json_failed_ = false;

  std::vector<ToolCall> calls_;
  bool repaired_ = false;
  ToolFault fault_ = ToolFault::none;
  std::string fault_reason_;
};

}  // namespace ds4::text
