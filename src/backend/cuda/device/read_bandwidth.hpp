// How fast the device reads its memory: what decoding is measured against.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace ds4::cuda {

/// `count` must be a multiple of this.
inline constexpr size_t read_step_words = size_t{528} * 512 * 8;

/// Reads `count` words of 16 bytes that are all made of one repeated byte; `sink` stays as it is.
cudaError_t read_words(const uint4* words, size_t count, uint32_t* sink, cudaStream_t stream);

/// Bytes per second of the fastest of several reads of a buffer of up to 8 GiB, or half of what is free.
/// Throws CudaFailure (out_of_memory below 256 MiB).
double measure_read_bandwidth(cudaStream_t stream);

}  // namespace ds4::cuda
