#include "text/dsml_reader.hpp"

#include <array>
#include <string>

#include "text/dsml.hpp"
#include "text/json_text.hpp"
#include "text/special_tokens.hpp"
#include "text/string_edit.hpp"

namespace ds4::text {
namespace {

constexpr auto kNotFound = std::string_view::npos;

constexpr DsmlStyle kFull{"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "<｜DSML｜invoke",
                          "</｜DSML｜invoke>",    "<｜DSML｜parameter",    kParameterEnd};
constexpr DsmlStyle kShort{"<DSML｜tool_calls>", "</DSML｜tool_calls>", "<DSML｜invoke",
                           "</DSML｜invoke>",    "<DSML｜parameter",    "</DSML｜parameter>"};
constexpr DsmlStyle kPlain{"<tool_calls>", "</tool_calls>", "<invoke",
                           "</invoke>",    "<parameter",    "</parameter>"};

/// Next places of the opening tags, looked up again only when the search has passed them, so that a whole
/// search is linear in the text.
class StartFinder {
 public:
  explicit StartFinder(std::string_view text) : text_(text) {}

  std::optional<DsmlStart> first_from(size_t from) {
    for (Candidate& candidate : candidates_) {
      if (candidate.searched && (candidate.position == kNotFound || candidate.position >= from)) continue;
      candidate.position = find_tag(candidate, from);
      candidate.searched = true;
    }
    for (const Candidate& candidate : candidates_) {
      if (candidate.position == kNotFound) continue;
      const size_t newlines = candidate.after_newlines ? 2 : 0;
      return DsmlStart{candidate.position, candidate.position + newlines + candidate.style->block_open.size(),
                       candidate.style};
    }
    return std::nullopt;
  }

 private:
  struct Candidate {
    const DsmlStyle* style;
    bool after_newlines;
    bool searched = false;
    size_t position = kNotFound;
  };

  size_t find_tag(const Candidate& candidate, size_t from) const {
    if (!candidate.after_newlines) return text_.find(candidate.style->block_open, from);
    return text_.find(std::string("\n\n").append(candidate.style->block_open), from);
  }

  std::string_view text_;
  std::array<Candidate, 6> candidates_{{{&kFull, true},
                                        {&kFull, false},
                                        {&kShort, true},
                                        {&kShort, false},
                                        {&kPlain, true},
                                        {&kPlain, false}}};
};

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

/// The value of `name="..."` inside a tag.
std::optional<std::string> attribute(std::string_view tag, std::string_view name_and_quote) {
  const size_t found = tag.find(name_and_quote);
  if (found == kNotFound) return std::nullopt;
  const size_t begin = found + name_and_quote.size();
  const size_t end = tag.find('"', begin);
  if (end == kNotFound) return std::nullopt;
  return unescape_attribute(tag.substr(begin, end - begin));
}

std::string string_argument(std::string_view value) {
  return json_quote(replace_all(value, kEscapedParameterEnd, kParameterEnd));
}

/// The JSON value that the text begins with; whatever follows it is dropped. Text that is no JSON becomes a
/// string: the arguments stay readable, and the tool can say what it misses.
std::string json_argument(std::string_view value) {
  const size_t begin = skip_white_space(value, 0);
  if (begin == value.size()) return "null";
  const auto end = json_value_end(value, begin);
  if (!end) return json_quote(value);
  return json_minify(value.substr(begin, *end - begin));
}

class BlockReader {
 public:
  BlockReader(std::string_view text, const DsmlStart& start)
      : text_(text), position_(start.body), style_(*start.style) {}

  std::optional<DsmlBlock> read() {
    DsmlBlock block;
    while (true) {
      skip_space();
      if (take(style_.block_close)) break;
      if (!read_invoke(block.calls.emplace_back())) return std::nullopt;
    }
    block.end = position_;
    return block;
  }

 private:
  struct Argument {
    std::string name;
    std::string json;
  };

  void skip_space() {
    const size_t found = text_.find_first_not_of(" \t\r\n\v\f", position_);
    position_ = found == kNotFound ? text_.size() : found;
  }

  bool next_is(std::string_view literal) const { return text_.substr(position_, literal.size()) == literal; }

  bool take(std::string_view literal) {
    if (!next_is(literal)) return false;
    position_ += literal.size();
    return true;
  }

  /// The rest of an opening tag, attributes and all.
  std::optional<std::string_view> take_tag(std::string_view opening) {
    if (!take(opening)) return std::nullopt;
    const size_t end = text_.find('>', position_);
    if (end == kNotFound) return std::nullopt;
    const std::string_view tag = text_.substr(position_, end - position_);
    position_ = end + 1;
    return tag;
  }

  bool read_invoke(ToolCall& call) {
    const auto tag = take_tag(style_.invoke_open);
    if (!tag) return false;
    auto name = attribute(*tag, "name=\"");
    if (!name) return false;
    call.name = std::move(*name);
    std::vector<Argument> arguments;
    while (true) {
      skip_space();
      if (take(style_.invoke_close)) break;
      if (!read_parameter(arguments.emplace_back(), true)) return false;
    }
    call.arguments = object_text(arguments);
    return true;
  }

  /// `may_nest`: a value without a declared type may be a list of parameters, which makes an object.
  bool read_parameter(Argument& argument, bool may_nest) {
    const auto tag = take_tag(style_.parameter_open);
    if (!tag) return false;
    auto name = attribute(*tag, "name=\"");
    if (!name) return false;
    argument.name = std::move(*name);
    const auto is_string = attribute(*tag, "string=\"");
    if (may_nest && !is_string) {
      const size_t value_begin = position_;
      skip_space();
      if (next_is(style_.parameter_open)) return read_nested(argument);
      position_ = value_begin;
    }
    const size_t end = text_.find(style_.parameter_close, position_);
    if (end == kNotFound) return false;
    const std::string_view value = text_.substr(position_, end - position_);
    position_ = end + style_.parameter_close.size();
    argument.json = is_string.value_or("true") == "true" ? string_argument(value) : json_argument(value);
    return true;
  }

  bool read_nested(Argument& argument) {
    std::vector<Argument> members;
    while (next_is(style_.parameter_open)) {
      if (!read_parameter(members.emplace_back(), false)) return false;
      skip_space();
    }
    take(style_.parameter_close);
    argument.json = object_text(members);
    return true;
  }

  static std::string object_text(const std::vector<Argument>& arguments) {
    std::string text = "{";
    for (const Argument& argument : arguments) {
      if (text.size() > 1) text.push_back(',');
      text.append(json_quote(argument.name)).append(":").append(argument.json);
    }
    return text.append("}");
  }

  std::string_view text_;
  size_t position_;
  const DsmlStyle& style_;
};

}  // namespace

std::optional<DsmlStart> find_dsml_block(std::string_view text, size_t from, bool skip_reasoning) {
  StartFinder finder(text);
  while (true) {
    const auto start = finder.first_from(from);
    if (!start || !skip_reasoning) return start;
    const size_t think = text.substr(0, start->position).find(kThinkOpen, from);
    if (think == kNotFound) return start;
    const size_t think_end = text.find(kThinkClose, think);
    if (think_end == kNotFound) return std::nullopt;
    from = think_end + kThinkClose.size();
  }
}

std::optional<DsmlBlock> read_dsml_block(std::string_view text, const DsmlStart& start) {
  return BlockReader(text, start).read();
}

}  // namespace ds4::text
