// What the CUDA benchmarks share: device memory with random content, timing of launches inside a graph, table
// and JSON lines.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace ds4::bench {

/// Ceilings that results are compared with, as ds4_cuda_ceilings measured them on an H200.
inline constexpr double read_ceiling_gb_per_s = 4515;
inline constexpr double f16_ceiling_tflop_per_s = 790;

/// Ends the program with the error's text unless `status` is success.
void require(cudaError_t status);

/// Device memory with random content. Any bits will do for the time of a product, but read as F32 or F16 they
/// are small ordinary numbers.
class Memory {
 public:
  explicit Memory(size_t bytes);
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() { cudaFree(data_); }

  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Microseconds of one launch: `launches` calls of launch(0), launch(1), ... captured in one graph, which is
/// replayed once to warm up and then seven times; the median. Let launches rotate among inputs that together
/// exceed L2.
double graph_microseconds(int launches, const std::function<cudaError_t(int, cudaStream_t)>& launch);

/// One result: a line of the table on standard output, or one JSON object a line with --json.
struct Line {
  std::string name;
  double microseconds = 0;
  double bytes = 0;  // moved by one launch; 0 when bandwidth says nothing
  double flops = 0;  // of one launch; 0 when the rate says nothing
};

class Report {
 public:
  /// Reads --json from the arguments; ends the program with exit code 2 and a sentence at any other.
  Report(int argc, char** argv, const char* title);
  /// The percentage is of the ceiling that binds: bytes / read ceiling or flops / matrix ceiling.
  void add(const Line& line) const;

 private:
  bool json_ = false;
};

}  // namespace ds4::bench
