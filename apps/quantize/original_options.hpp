// What to write instead of the options that the original's quantizer has and this program has not.
#pragma once

#include <string_view>

namespace ds4::quantize {

/// For an argument such as "--experts" or "--experts=q4_k": what does the same here, or why nothing does.
/// Empty if it is none of them.
std::string_view instead_of(std::string_view argument);

}  // namespace ds4::quantize
