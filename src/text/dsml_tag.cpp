#include "text/dsml_tag.hpp"

#include <algorithm>
#include <array>

#include "text/json_text.hpp"

namespace ds4::text {
namespace {

constexpr size_t kMostBars = 2;       // on one side of the word; models double them
constexpr size_t kMostTagSpaces = 8;  // before '>'
constexpr std::string_view kWideBar = "｜";
constexpr std::string_view kWord = "DSML";
constexpr std::array<std::string_view, 3> kNames{"tool_calls", "invoke", "parameter"};

using State = TagMatch::State;

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/// A position in a text that may end anywhere.
struct Cursor {
  std::string_view text;
  size_t at = 0;

  bool at_end() const { return at >= text.size(); }

  State take(std::string_view literal) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(literal)) {
      at += literal.size();
      return State::found;
    }
    return literal.starts_with(rest) ? State::partial : State::none;
  }

  /// At most `most` times; how often, or nothing if the text ends inside the literal.
  std::optional<size_t> take_repeated(std::string_view literal, size_t most) {
    for (size_t count = 0; count < most; ++count) {
      const State state = take(literal);
      if (state == State::none) return count;
      if (state == State::partial) return std::nullopt;
    }
    return most;
  }

  /// Narrow and wide bars.
  std::optional<size_t> take_bars() {
    size_t bars = 0;
    while (bars < kMostBars) {
      const State wide = take(kWideBar);
      if (wide == State::partial) return std::nullopt;
      if (wide == State::none && take("|") != State::found) break;
      ++bars;
    }
    return bars;
  }
};

/// The bars and the word, if they are there.
State take_sentinel(Cursor& cursor, DsmlTag& tag) {
  const size_t begin = cursor.at;
  const auto bars_before = cursor.take_bars();
  if (!bars_before) return State::partial;
  const State word = cursor.take(kWord);
  if (word == State::partial) return State::partial;
  if (word == State::none) {
    tag.family = TagFamily::plain;
    return *bars_before == 0 ? State::found : State::none;
  }
  const auto bars_after = cursor.take_bars();
  if (!bars_after) return State::partial;
  if (*bars_before + *bars_after == 0) return State::none;
  tag.family = TagFamily::sentinel;
  const size_t end = cursor.at;
  if (!cursor.take_repeated(" ", 2)) return State::partial;
  tag.sentinel = cursor.text.substr(begin, end - begin);
  return State::found;
}

State take_name(Cursor& cursor, DsmlTag& tag) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    const State state = cursor.take(kNames[i]);
    if (state == State::none) continue;
    tag.name = static_cast<TagName>(i);
    return state;
  }
  return State::none;
}

struct Entity {
  std::string_view spelling;
  char character;
};

constexpr std::array<Entity, 5> kEntities{
    {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}}};

std::string unescape_attribute(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const Entity* found = nullptr;
    for (const Entity& entity : kEntities) {
      if (text.substr(i, entity.spelling.size()) == entity.spelling) found = &entity;
    }
    result.push_back(found != nullptr ? found->character : text[i]);
    i += found != nullptr ? found->spelling.size() : 1;
  }
  return result;
}

}  // namespace

TagMatch match_tag(std::string_view text) {
  DsmlTag tag;
  Cursor cursor{text, 1};
  const auto brackets = cursor.take_repeated("<", 1);
  if (!brackets) return {State::partial, {}};
  const auto slashes = cursor.take_repeated("/", 2);
  if (!slashes) return {State::partial, {}};
  tag.closing = *slashes > 0;
  if (const State state = take_sentinel(cursor, tag); state != State::found) return {state, {}};
  // Without the sentinel only the exact spelling is safe to take for a tag.
  if (tag.family == TagFamily::plain && (*brackets > 0 || *slashes > 1)) return {};
  if (const State state = take_name(cursor, tag); state != State::found) return {state, {}};
  // This one is markup whatever follows, so that it is never shown.
  const bool certain = tag.family == TagFamily::sentinel && tag.name == TagName::block && !tag.closing;
  if (!certain) {
    if (cursor.at_end()) return {State::partial, {}};
    if (is_name_byte(text[cursor.at])) return {};
  }
  if (tag.closing) {
    const size_t stop = std::min(skip_white_space(text, cursor.at), cursor.at + kMostTagSpaces);
    if (stop == text.size()) return {State::partial, {}};
    if (text[stop] != '>') return {};
    cursor.at = stop + 1;
  }
  tag.length = cursor.at;
  return {State::found, tag};
}

void AttributeReader::end_attribute() {
  std::optional<std::string>* target = nullptr;
  if (key_ == "name") target = &name_;
  if (key_ == "string") target = &string_;
  if (target != nullptr && !target->has_value()) *target = unescape_attribute(value_);
  key_.clear();
  value_.clear();
  place_ = Place::between;
}

AttributeReader::State AttributeReader::feed(char c) {
  const bool space = c == ' ' || c == '\t' || c == '\r' || c == '\n';
  const bool quote = c == '"' || c == '\'';
  // Written as an entity in names; here it shows that a quote or the bracket was lost.
  if (c == '<') return State::bad;
  if (place_ == Place::quoted) {
    if (c == quote_) {
      end_attribute();
    } else {
      value_.push_back(c);
    }
    return State::reading;
  }
  if (place_ == Place::unquoted && (space || c == '>')) end_attribute();
  if (c == '>') {
    if (place_ == Place::before_value) return State::bad;
    return State::done;
  }
  if (place_ == Place::unquoted) {
    value_.push_back(c);
    return State::reading;
  }
  if (!space) slash_ = c == '/' && place_ != Place::before_value;
  switch (place_) {
    case Place::before_value:
      if (space) break;
      place_ = quote ? Place::quoted : Place::unquoted;
      if (quote) {
        quote_ = c;
      } else {
        value_.push_back(c);
      }
      break;
    case Place::key:
    case Place::before_equals:
      if (c == '=') {
        place_ = Place::before_value;
        break;
      }
      if (space) {
        place_ = Place::before_equals;
        break;
      }
      if (place_ == Place::before_equals) key_.clear();  // the word before had no value
      [[fallthrough]];
    default:
      if (space || quote || c == '/' || c == '=') break;
      place_ = Place::key;
      key_.push_back(c);
      break;
  }
  return State::reading;
}

}  // namespace ds4::text
