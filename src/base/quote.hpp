// Makes text from a file fit to stand inside an error sentence.
#pragma once

#include <string>
#include <string_view>

namespace ds4 {

/// `text` in double quotes. Anything but printable ASCII becomes \xNN, and text above 80 bytes is cut with
/// "...", so that a damaged or hostile file cannot put line breaks, terminal codes or megabytes into a
/// message.
std::string quote(std::string_view text);

}  // namespace ds4
