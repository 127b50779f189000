#include "backend/cuda/device/tensor_map.hpp"

#include <cudaTypedefs.h>

namespace ds4::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

cudaError_t make_tensor_map(const HalfTensor& tensor, CUtensorMap& map) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encode();
  if (encode == nullptr) return cudaErrorNotSupported;
  const bool grouped = tensor.groups > 1;
  const cuuint32_t rank = grouped ? 3 : 2;
  const cuuint64_t dims[3] = {tensor.cols, grouped ? tensor.groups : tensor.rows, tensor.rows};
  const cuuint64_t strides[2] = {2 * (grouped ? tensor.group_stride : tensor.row_stride),
                                 2 * tensor.row_stride};
  const cuuint32_t box[3] = {64, grouped ? 1 : tensor.box_rows, tensor.box_rows};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, const_cast<__half*>(tensor.data), dims, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace ds4::cuda
