// Version of the library.
#pragma once

namespace ds4 {

/// "MAJOR.MINOR.PATCH"
inline constexpr const char* version = "0.1.0";

}  // namespace ds4
