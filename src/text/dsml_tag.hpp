// Recognises the tags of tool calls in generated text, also where models misspell them (docs/chat.md §6.2).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ds4::text {

enum class TagName { block, invoke, parameter };

/// Tags of a block belong to one family: with the word DSML in them, whatever its bars look like, or without.
enum class TagFamily { sentinel, plain };

struct DsmlTag {
  TagName name = TagName::block;
  bool closing = false;
  TagFamily family = TagFamily::sentinel;
  std::string_view sentinel;  // as spelled, between the angle bracket and the name; empty if plain
  size_t length = 0;          // a closing tag with its '>', an opening one up to the end of its name
};

struct TagMatch {
  enum class State {
    none,     // no tag stands here
    partial,  // the text ends too early to tell
    found,
  };
  State state = State::none;
  DsmlTag tag;
};

/// The tag that `text` begins with. Precondition: `text` begins with '<'.
TagMatch match_tag(std::string_view text);

/// The attributes of an opening tag, read byte by byte from behind its name. Tolerates white space, either
/// kind of quotes, none at all, and doubled ones.
class AttributeReader {
 public:
  enum class State { reading, done, bad };
  State feed(char c);

  /// Decoded (five entities); the first of several counts.
  const std::optional<std::string>& name() const { return name_; }
  const std::optional<std::string>& string() const { return string_; }
  bool self_closing() const { return slash_; }

 private:
  enum class Place { between, key, before_equals, before_value, quoted, unquoted };
  void end_attribute();

  Place place_ = Place::between;
  char quote_ = '"';
  bool slash_ = false;
  std::string key_, value_;
  std::optional<std::string> name_, string_;
};

}  // namespace ds4::text
