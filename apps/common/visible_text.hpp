// Text as a terminal may be given it: nothing in it can command the terminal.
#pragma once

#include <utf8proc.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace ds4::cli {

/// One character of UTF-8 text.
struct Decoded {
  utf8proc_int32_t value = -1;  // -1: a byte that is not UTF-8
  size_t bytes = 1;
};
Decoded decode_at(std::string_view text, size_t position);

/// C0, DEL and C1: what terminals act on.
bool is_control(utf8proc_int32_t value);

/// Control characters as ^X (^? for DEL and C1), except those in `kept`; bytes that are not UTF-8 as U+FFFD.
std::string visible(std::string_view text, std::string_view kept = {});

}  // namespace ds4::cli
