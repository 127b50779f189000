// Whether this build has kernels with warpgroup products (sm_90a) for the current device.
#pragma once

namespace ds4::cuda {

bool has_warpgroup_products();

}  // namespace ds4::cuda
