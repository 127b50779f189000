// Weight matrices with random content for the CUDA benchmarks.
#pragma once

#include "backend/cuda/repack/repack.hpp"
#include "cuda_timing.hpp"
#include "format/tensor_type.hpp"

namespace ds4::bench {

/// All planes of one matrix.
class Matrix {
 public:
  Matrix(format::TensorType type, uint32_t rows, uint32_t cols)
      : quants_(cuda::plane_bytes(type, rows, cols, cuda::Plane::quants)),
        scales_(cuda::plane_bytes(type, rows, cols, cuda::Plane::scales)),
        extras_(cuda::plane_bytes(type, rows, cols, cuda::Plane::extras)) {
    device = {type, rows, cols, quants_.as<uint8_t>(), scales_.as<uint8_t>(), extras_.as<uint8_t>()};
  }
  cuda::DeviceMatrix device;

 private:
  Memory quants_, scales_, extras_;
};

/// Bytes of `rows` rows in the file and on the device; an average number of rows need not be whole.
inline double matrix_bytes(format::TensorType type, double rows, uint32_t cols) {
  return rows * static_cast<double>(format::row_bytes(type, cols));
}

}  // namespace ds4::bench
