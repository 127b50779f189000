// A token id.
#pragma once

#include <cstdint>

namespace ds4 {

/// Index into the vocabulary; negative means "none".
using Token = int32_t;

}  // namespace ds4
