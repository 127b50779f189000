// Products of the CUDA backend at Flash shapes: microseconds, GB/s of weights and the share of the read rate
// of an H200 (4,515 GB/s). Launches run in one graph over weights that together exceed L2, so that all bytes
// come from memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/moe/experts.hpp"
#include "backend/cuda/repack/repack.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

constexpr double read_rate_gb_per_s = 4515;
constexpr size_t rotated_bytes = size_t{400} << 20;  // eight times L2
constexpr int launches = 40;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// Any bits will do for the time of a product, but F32 and F16 must stay small to stay ordinary numbers.
__global__ void fill_kernel(uint32_t* words, size_t count) {
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    words[i] = static_cast<uint32_t>(x >> 32) & 0xbbffbbffu;
  }
}

/// Device memory with random content.
class Memory {
 public:
  explicit Memory(size_t bytes) {
    const size_t words = bytes / 4 + 4;
    require(cudaMalloc(reinterpret_cast<void**>(&data_), words * 4));
    fill_kernel<<<1024, 256>>>(reinterpret_cast<uint32_t*>(data_), words);
    require(cudaDeviceSynchronize());
  }
  Memory(Memory&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ~Memory() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
};

class Matrix {
 public:
  Matrix(TensorType type, uint32_t rows, uint32_t cols)
      : quants_(plane_bytes(type, rows, cols, Plane::quants)),
        scales_(plane_bytes(type, rows, cols, Plane::scales)),
        extras_(plane_bytes(type, rows, cols, Plane::extras)) {
    device = {type, rows, cols, quants_.as<uint8_t>(), scales_.as<uint8_t>(), extras_.as<uint8_t>()};
  }
  DeviceMatrix device;

 private:
  Memory quants_, scales_, extras_;
};

double matrix_bytes(TensorType type, double rows, uint32_t cols) {
  return rows * static_cast<double>(format::row_bytes(type, cols));
}

class Activations {
 public:
  Activations(size_t rows, uint32_t stride)
      : f32_(rows * stride * 4), codes_(rows * stride), scales_(rows * stride / 8) {
    device = {f32_.as<float>(), codes_.as<int8_t>(), scales_.as<float>(), stride};
  }
  DeviceActivations device;

 private:
  Memory f32_, codes_, scales_;
};

/// Microseconds of launch(i), i = 0 .. launches - 1, in one graph; the best of five runs.
double measure(cudaStream_t stream, const std::function<cudaError_t(int)>& launch) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) require(launch(i));
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  require(cudaGraphLaunch(executable, stream));
  double best = 1e30;
  for (int run = 0; run < 5; ++run) {
    require(cudaEventRecord(begin, stream));
    require(cudaGraphLaunch(executable, stream));
    require(cudaEventRecord(end, stream));
    require(cudaEventSynchronize(end));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, 1e3 * milliseconds / launches);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  return best;
}

void print_line(const std::string& what, int tokens, double microseconds, double bytes) {
  const double rate = bytes / microseconds / 1e3;
  std::printf("%-44s %3d %9.2f %9.2f %9.0f %7.1f\n", what.c_str(), tokens, bytes / 1e6, microseconds, rate,
              100 * rate / read_rate_gb_per_s);
  std::fflush(stdout);
}

struct Case {
  const char* what;
  TensorType type;
  uint32_t rows, cols;
  uint32_t jobs = 1;
  uint32_t rows_per_group = 0;
};

void bench_gemv(cudaStream_t stream, const Case& c) {
  const double bytes = c.jobs * matrix_bytes(c.type, c.rows, c.cols);
  const size_t copies =
      std::max<size_t>(1, static_cast<size_t>(static_cast<double>(rotated_bytes) / bytes)) + 1;
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < copies * c.jobs; ++i) matrices.emplace_back(c.type, c.rows, c.cols);
  const uint32_t groups = c.rows_per_group == 0 ? 1 : c.rows / c.rows_per_group;
  const Activations x(max_rows, groups * c.cols);
  const Memory out(size_t{max_rows} * c.rows * c.jobs * 4);
  for (const int tokens : {1, 2, 4, 8, 16}) {
    const double microseconds = measure(stream, [&](int i) {
      GemvJobs jobs;
      jobs.count = static_cast<int>(c.jobs);
      for (uint32_t j = 0; j < c.jobs; ++j) {
        const Matrix& m = matrices[(static_cast<size_t>(i) % copies) * c.jobs + j];
        jobs.job[j] = {m.device, x.device,         out.as<float>() + size_t{max_rows} * c.rows * j,
                       c.rows,   c.rows_per_group, c.rows_per_group == 0 ? 0 : c.cols};
      }
      return gemv(jobs, tokens, stream);
    });
    print_line(c.what, tokens, microseconds, bytes);
  }
}

void bench_quantize(cudaStream_t stream) {
  const Activations x(max_rows, 4096);
  for (const uint32_t tokens : {1u, 16u}) {
    const double microseconds = measure(stream, [&](int) {
      return quantize({x.device.f32, const_cast<int8_t*>(x.device.codes), const_cast<float*>(x.device.scales),
                       tokens, 4096, 4096},
                      stream);
    });
    print_line("quantise 4096", static_cast<int>(tokens), microseconds, tokens * 4096 * 5.125);
  }
}

constexpr uint32_t experts = 256, top = 6, width = 4096, features = 2048;

/// Expert choices of all launches on the device, and how many distinct experts a launch touches on average.
struct Choices {
  Choices() : ids(size_t{launches} * max_rows * top * 4) {
    std::mt19937 random(1);
    for (int i = 0; i < launches * max_rows; ++i) {
      std::set<int32_t> set;
      while (set.size() < top) set.insert(static_cast<int32_t>(random() % experts));
      host.insert(host.end(), set.begin(), set.end());
    }
    require(cudaMemcpy(ids.as<int32_t>(), host.data(), host.size() * 4, cudaMemcpyHostToDevice));
  }
  const int32_t* of(int launch) const { return ids.as<int32_t>() + size_t{max_rows} * top * launch; }
  double distinct(int tokens) const {
    size_t sum = 0;
    for (int i = 0; i < launches; ++i) {
      const auto first = host.begin() + static_cast<ptrdiff_t>(max_rows * top) * i;
      sum += std::set<int32_t>(first, first + tokens * static_cast<ptrdiff_t>(top)).size();
    }
    return static_cast<double>(sum) / launches;
  }
  Memory ids;
  std::vector<int32_t> host;
};

void bench_experts(cudaStream_t stream, TensorType gate_type, TensorType down_type) {
  const Choices choices;
  const Memory weights(max_rows * top * 4), mid(size_t{max_rows} * (top + 1) * features * 4),
      out(size_t{max_rows} * width * 4);
  constexpr size_t copies = 24;
  const std::string gate_name(format::type_name(gate_type)), down_name(format::type_name(down_type));
  {
    const Matrix gate(gate_type, experts * features, width), up(gate_type, experts * features, width);
    std::vector<Matrix> shared;
    for (size_t i = 0; i < 2 * copies; ++i) shared.emplace_back(TensorType::q8_0, features, width);
    const Activations x(max_rows, width);
    for (const int tokens : {1, 2, 4, 8, 16}) {
      const double microseconds = measure(stream, [&](int i) {
        const size_t copy = static_cast<size_t>(i) % copies;
        return experts_gate_up({gate.device, up.device, shared[2 * copy].device, shared[2 * copy + 1].device,
                                x.device, choices.of(i), weights.as<float>(), mid.as<float>(),
                                static_cast<uint32_t>(tokens), top, features},
                               stream);
      });
      print_line("experts gate+up " + gate_name + " + shared Q8_0", tokens, microseconds,
                 2 * (matrix_bytes(gate_type, choices.distinct(tokens) * features, width) +
                      matrix_bytes(TensorType::q8_0, features, width)));
    }
  }
  const Matrix down(down_type, experts * width, features);
  std::vector<Matrix> shared;
  for (size_t i = 0; i < copies; ++i) shared.emplace_back(TensorType::q8_0, width, features);
  const Activations x(size_t{max_rows} * (top + 1), features);
  for (const int tokens : {1, 2, 4, 8, 16}) {
    const double microseconds = measure(stream, [&](int i) {
      return experts_down({down.device, shared[static_cast<size_t>(i) % copies].device, x.device,
                           choices.of(i), out.as<float>(), width, static_cast<uint32_t>(tokens), top, width},
                          stream);
    });
    print_line("experts down " + down_name + " + shared Q8_0", tokens, microseconds,
               matrix_bytes(down_type, choices.distinct(tokens) * width, features) +
                   matrix_bytes(TensorType::q8_0, width, features));
  }
}

void run_all() {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  std::printf("%-44s %3s %9s %9s %9s %7s\n", "product", "R", "MB", "us", "GB/s", "% peak");
  const TensorType q8 = TensorType::q8_0, f16 = TensorType::f16;
  for (const Case& c :
       {Case{"q_a 1024 x 4096 Q8_0", q8, 1024, 4096}, Case{"q_b 32768 x 1024 Q8_0", q8, 32768, 1024},
        Case{"kv 512 x 4096 Q8_0", q8, 512, 4096},
        Case{"o_a 8 x (1024 x 4096) Q8_0", q8, 8192, 4096, 1, 1024},
        Case{"o_b 4096 x 8192 Q8_0", q8, 4096, 8192}, Case{"head 129280 x 4096 Q8_0", q8, 129280, 4096},
        Case{"router 256 x 4096 F16", f16, 256, 4096},
        Case{"compressor 2 x (1024 x 4096) F16", f16, 1024, 4096, 2},
        Case{"indexer q_b 8192 x 1024 F16", f16, 8192, 1024},
        Case{"hyper-connection mix 24 x 16384 F16", f16, 24, 16384},
        Case{"dense 8192 x 4096 Q4_K", TensorType::q4_k, 8192, 4096},
        Case{"dense 8192 x 4096 MXFP4", TensorType::mxfp4, 8192, 4096}}) {
    bench_gemv(stream, c);
  }
  bench_quantize(stream);
  bench_experts(stream, TensorType::iq2_xxs, TensorType::q2_k);
  bench_experts(stream, TensorType::q4_k, TensorType::q4_k);
  bench_experts(stream, TensorType::mxfp4, TensorType::mxfp4);
  require(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace ds4::cuda

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no CUDA device: nothing measured\n");
    return 0;
  }
  ds4::cuda::run_all();
  return 0;
}
