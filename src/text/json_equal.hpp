// Whether two JSON texts say the same.
#pragma once

#include <string_view>

namespace ds4::text {

/// Members of objects may stand in another order, strings may be escaped in another way, and numbers are the
/// same if they are as `double`: what programs do to JSON on its way. Below 64 levels of nesting texts must
/// be equal but for white space. False if one of them is no well-formed value.
bool json_equal(std::string_view a, std::string_view b);

}  // namespace ds4::text
