// Raw GGUF blocks in device memory scattered into the aligned planes that the kernels read
// (device_types.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

enum class Plane { quants, scales, extras };

/// Bytes of one plane of a matrix; 0 for a plane that the type does not have, or a type that is no matrix
/// type. Precondition: rows * cols * 4 fits size_t and cols is a multiple of the block size.
size_t plane_bytes(format::TensorType type, size_t rows, size_t cols, Plane plane);

/// Scatters blocks [first_block, first_block + block_count) of the matrix (row-major block order;
/// `raw_blocks` points at the first of them) into the planes of `destination`. Q8_0, MXFP4, Q4_K, Q2_K,
/// IQ2_XXS; other types are cudaErrorInvalidValue, as is a run beyond the matrix. Planes must be aligned to
/// 16 bytes; raw blocks to 1.
cudaError_t repack(format::TensorType type, const uint8_t* raw_blocks, size_t first_block, size_t block_count,
                   const DeviceMatrix& destination, cudaStream_t stream);

}  // namespace ds4::cuda
