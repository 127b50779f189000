// Device memory for tests: filled from a vector, read back as one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ds4::cuda {

inline void require(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(size_t count) : count_(count) {
    require(cudaMalloc(reinterpret_cast<void**>(&data_), (count + 1) * sizeof(T)));
    require(cudaMemset(data_, 0xff, (count + 1) * sizeof(T)));  // NaN, so that a value nobody wrote shows
  }
  explicit DeviceCopy(const std::vector<T>& values) : DeviceCopy(values.size()) {
    require(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceCopy(DeviceCopy&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceCopy& operator=(DeviceCopy&&) = delete;
  ~DeviceCopy() { cudaFree(data_); }

  T* data() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    require(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

/// Skips, with the reason, where no GPU answers.
class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess || count == 0) {
      (void)cudaGetLastError();
      GTEST_SKIP() << "no CUDA device: "
                   << (status != cudaSuccess ? cudaGetErrorString(status) : "none listed");
    }
  }
};

}  // namespace ds4::cuda
