// Device and pinned host memory that frees itself.
#pragma once

#include <cstddef>
#include <utility>

#include "backend/cuda/device/cuda_error.hpp"

namespace ds4::cuda {

/// `count` elements of device memory; throws CudaFailure naming `what` if there is not enough.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(size_t count, const char* what) : count_(count) {
    if (count > 0) check(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), what);
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(static_cast<void*>(data_)); }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

/// Page-locked host memory, for copies that run beside kernels.
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer(size_t count, const char* what) : count_(count) {
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)), what);
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(static_cast<void*>(data_)); }

  T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace ds4::cuda
