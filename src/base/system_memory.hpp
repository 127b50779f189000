// How much memory the system could give now.
#pragma once

#include <cstdint>

namespace ds4 {

/// Bytes that can be taken without swapping, file pages that can be dropped included; 0 if the system does
/// not say.
uint64_t available_memory_bytes();

}  // namespace ds4
