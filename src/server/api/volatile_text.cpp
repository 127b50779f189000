#include "server/api/volatile_text.hpp"

#include <algorithm>

namespace ds4::server::api {
namespace {

void tell(const VolatileTextOptions& options, std::string_view dropped) {
  if (options.on_drop) options.on_drop(dropped);
}

bool starts_with_any(std::string_view text, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return text.starts_with(prefix); });
}

}  // namespace

std::string_view without_volatile_lines(std::string_view text, const VolatileTextOptions& options) {
  if (!options.drop) return text;
  while (starts_with_any(text, options.line_prefixes)) {
    const size_t end = text.find('\n');
    tell(options, text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return text;
}

std::string without_volatile_members(const JsonValue& tool, const VolatileTextOptions& options) {
  const std::string_view text = tool.text();
  if (!options.drop) return std::string(text);
  std::string kept = "{";
  size_t begin = 1;  // of the member, with the comma and white space before it
  for (const text::JsonMember& member : tool.members()) {
    const size_t end = static_cast<size_t>(member.value.data() - text.data()) + member.value.size();
    std::string_view piece = text.substr(begin, end - begin);
    begin = end;
    if (std::find(options.tool_members.begin(), options.tool_members.end(), member.key) !=
        options.tool_members.end()) {
      tell(options, piece);
      continue;
    }
    const size_t comma = text::skip_white_space(piece, 0);
    if (kept.size() == 1 && piece[comma] == ',')
      piece = piece.substr(comma + 1);  // its left neighbour is gone
    kept += piece;
  }
  return kept += text.substr(begin);
}

}  // namespace ds4::server::api
