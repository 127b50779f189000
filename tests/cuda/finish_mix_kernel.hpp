// A kernel that does nothing but finish_mix(), for tests.
#pragma once

#include "backend/cuda/hc/hyper_connection.hpp"

namespace ds4::cuda {

/// `threads` of a block: a multiple of 32, at most 1024.
void launch_finish_mix(const MixFinish& mix, int rows, int threads);

}  // namespace ds4::cuda
