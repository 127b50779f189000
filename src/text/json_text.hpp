// JSON as text: values are found, shortened and quoted without being converted, so that numbers keep their
// digits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::text {

/// White space of JSON, which is also all that the tool markup allows between its tags.
size_t skip_white_space(std::string_view text, size_t position);

/// The end of the well-formed value that begins at `position` (after white space), or nothing. Any depth of
/// nesting; time is linear and no call recurses.
std::optional<size_t> json_value_end(std::string_view text, size_t position);

struct JsonMember {
  std::string key;         // decoded
  std::string_view value;  // as it stands in the text
};

/// The members of an object in the order of the text, repeated keys included; nothing if `text` is not one
/// well-formed object.
std::optional<std::vector<JsonMember>> json_object_members(std::string_view text);

/// Precondition: `value` is well-formed. White space outside strings is left out.
std::string json_minify(std::string_view value);

/// Precondition: `value` is a well-formed string with its quotes. A lone surrogate becomes U+FFFD.
std::string json_unquote(std::string_view value);

/// The text of a string literal, without the quotes.
std::string json_escape(std::string_view text);
std::string json_quote(std::string_view text);

}  // namespace ds4::text
