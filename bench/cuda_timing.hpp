// What the CUDA benchmarks share: device memory with random content, timing of launches inside a graph, lines
// of text or JSON.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace ds4::bench {

/// Ceilings that results are compared with: a plain read and large F16 products on an H200. ds4_cuda_ceilings
/// measures both on the GPU at hand.
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

/// A copy of `values` in device memory.
template <class T>
Memory upload(const std::vector<T>& values) {
  Memory memory(values.size() * sizeof(T));
  require(cudaMemcpy(memory.as<T>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

/// Owns the memory whose addresses it hands out.
class Arena {
 public:
  /// With random content, as Memory.
  template <class T>
  T* take(size_t count) {
    return memories_.emplace_back(count * sizeof(T)).template as<T>();
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    return memories_.emplace_back(bench::upload(values)).template as<T>();
  }

 private:
  std::vector<Memory> memories_;
};

/// Microseconds of one launch: `launches` calls of launch(0), launch(1), ... captured in one graph, which is
/// replayed once to warm up and then seven times; the median. Let launches rotate among inputs that together
/// exceed L2.
double graph_microseconds(int launches, const std::function<cudaError_t(int, cudaStream_t)>& launch);

/// One result: a line of text on standard output, or one JSON object a line with --json.
struct Line {
  std::string name;
  double microseconds = 0;
  double bytes = 0;  // moved by one launch; 0 when bandwidth says nothing
  double flops = 0;  // of one launch; 0 when the rate says nothing
};

/// What a benchmark was called with.
struct Options {
  std::string program;
  bool json = false;
  std::vector<std::string> arguments;
};

/// Reads --json, which may stand anywhere, and up to `most_arguments` arguments that are no options; any
/// other ends the program with exit code 2 and a sentence.
Options read_options(int argc, char** argv, size_t most_arguments = 0);

class Report {
 public:
  /// Its first line says what is measured on which GPU. Without a GPU the program ends with exit code 0 and a
  /// sentence on standard error.
  Report(const Options& options, const char* title);

  /// The percentage is of the ceiling that binds: bytes / read ceiling or flops / matrix ceiling.
  void add(const Line& line) const;

  /// For programs that print lines of their own.
  bool json() const { return json_; }

 private:
  bool json_;
};

/// "1 row", "16 rows".
std::string counted(uint64_t count, const char* what);

}  // namespace ds4::bench
