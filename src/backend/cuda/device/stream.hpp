// A stream that destroys itself.
#pragma once

#include "backend/cuda/device/cuda_error.hpp"

namespace ds4::cuda {

/// Does not wait for the default stream.
class Stream {
 public:
  /// Throws CudaFailure.
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace ds4::cuda
