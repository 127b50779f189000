// Matrix-matrix products of the CUDA backend at Flash shapes: microseconds, TOP/s and GB/s of weights.
// Launches run in one graph over weights that together exceed L2, so that all bytes come from memory.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/gemm/expert_gemm.hpp"
#include "backend/cuda/gemm/gemm.hpp"
#include "backend/cuda/repack/repack.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

constexpr size_t rotated_bytes = size_t{200} << 20;  // four times L2
constexpr int launches = 10;
constexpr int token_counts[] = {32, 64, 128, 256};

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

void print_line(const std::string& what, int tokens, double microseconds, double bytes, double products) {
  std::printf("%-44s %3d %9.2f %9.2f %9.1f %9.0f\n", what.c_str(), tokens, bytes / 1e6, microseconds,
              2e-6 * products / microseconds, bytes / microseconds / 1e3);
  std::fflush(stdout);
}

struct Case {
  const char* what;
  TensorType type;
  uint32_t rows, cols;
  uint32_t jobs = 1;
  uint32_t rows_per_group = 0;
};

void bench_gemm(cudaStream_t stream, const Case& c) {
  const double bytes = c.jobs * matrix_bytes(c.type, c.rows, c.cols);
  const size_t copies =
      std::min<size_t>(launches, static_cast<size_t>(static_cast<double>(rotated_bytes) / bytes) + 1);
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < copies * c.jobs; ++i) matrices.emplace_back(c.type, c.rows, c.cols);
  const uint32_t groups = c.rows_per_group == 0 ? 1 : c.rows / c.rows_per_group;
  const Activations x(max_gemm_tokens, groups * c.cols);
  const Memory out(size_t{max_gemm_tokens} * c.rows * c.jobs * 4);
  for (const int tokens : token_counts) {
    const double microseconds = measure(stream, [&](int i) {
      GemvJobs jobs;
      jobs.count = static_cast<int>(c.jobs);
      for (uint32_t j = 0; j < c.jobs; ++j) {
        const Matrix& m = matrices[(static_cast<size_t>(i) % copies) * c.jobs + j];
        jobs.job[j] = {m.device, x.device,         out.as<float>() + size_t{max_gemm_tokens} * c.rows * j,
                       c.rows,   c.rows_per_group, c.rows_per_group == 0 ? 0 : c.cols};
      }
      return gemm(jobs, tokens, stream);
    });
    print_line(c.what, tokens, microseconds, bytes, double{1} * c.jobs * c.rows * c.cols * tokens);
  }
}

constexpr uint32_t experts = 256, top = 6, width = 4096, features = 2048;

/// Expert choices on the device, and how many distinct experts they touch.
struct Choices {
  Choices() : ids(size_t{max_gemm_tokens} * top * 4) {
    std::mt19937 random(1);
    for (int i = 0; i < max_gemm_tokens; ++i) {
      std::set<int32_t> set;
      while (set.size() < top) set.insert(static_cast<int32_t>(random() % experts));
      host.insert(host.end(), set.begin(), set.end());
    }
    require(cudaMemcpy(ids.as<int32_t>(), host.data(), host.size() * 4, cudaMemcpyHostToDevice));
  }
  double distinct(int tokens) const {
    return static_cast<double>(
        std::set<int32_t>(host.begin(), host.begin() + tokens * static_cast<ptrdiff_t>(top)).size());
  }
  Memory ids;
  std::vector<int32_t> host;
};

void bench_experts(cudaStream_t stream, TensorType gate_type, TensorType down_type) {
  const Choices choices;
  const Memory weights(max_gemm_tokens * top * 4), out(size_t{max_gemm_tokens} * width * 4),
      mid_out(size_t{max_gemm_tokens} * (top + 1) * features * 4),
      products(expert_products_bytes(max_gemm_tokens, top, width)),
      scratch(expert_groups_bytes(max_gemm_tokens, top, experts));
  const Matrix gate(gate_type, experts * features, width), up(gate_type, experts * features, width),
      down(down_type, experts * width, features), shared_gate(TensorType::q8_0, features, width),
      shared_up(TensorType::q8_0, features, width), shared_down(TensorType::q8_0, width, features);
  const Activations x(max_gemm_tokens, width), mid(size_t{max_gemm_tokens} * (top + 1), features);
  const std::string gate_name(format::type_name(gate_type)), down_name(format::type_name(down_type));
  for (const int tokens : token_counts) {
    const uint32_t count = static_cast<uint32_t>(tokens);
    const ExpertGroups groups = {choices.ids.as<int32_t>(), count, top, experts, scratch.as<void>()};
    const double slots = double{top + 1} * tokens;
    print_line("expert groups", tokens, measure(stream, [&](int) { return expert_groups(groups, stream); }),
               0, 0);
    print_line("experts gate+up " + gate_name + " + shared Q8_0", tokens,
               measure(stream,
                       [&](int) {
                         return expert_gemm_gate_up(
                             {gate.device, up.device, shared_gate.device, shared_up.device, x.device,
                              groups.ids, weights.as<float>(), mid_out.as<float>(), count, top, features},
                             groups, stream);
                       }),
               2 * (matrix_bytes(gate_type, choices.distinct(tokens) * features, width) +
                    matrix_bytes(TensorType::q8_0, features, width)),
               slots * 2 * features * width);
    print_line("experts down " + down_name + " + shared Q8_0", tokens,
               measure(stream,
                       [&](int) {
                         return expert_gemm_down({down.device, shared_down.device, mid.device, groups.ids,
                                                  out.as<float>(), width, count, top, width},
                                                 groups, products.as<float>(), stream);
                       }),
               matrix_bytes(down_type, choices.distinct(tokens) * width, features) +
                   matrix_bytes(TensorType::q8_0, width, features),
               slots * width * features);
  }
}

void run_all() {
  cudaStream_t stream = nullptr;
  require(cudaStreamCreate(&stream));
  std::printf("%-44s %3s %9s %9s %9s %9s\n", "product", "R", "MB", "us", "TOP/s", "GB/s");
  const TensorType q8 = TensorType::q8_0, f16 = TensorType::f16;
  for (const Case& c :
       {Case{"q_a 1024 x 4096 Q8_0", q8, 1024, 4096}, Case{"q_b 32768 x 1024 Q8_0", q8, 32768, 1024},
        Case{"kv 512 x 4096 Q8_0", q8, 512, 4096},
        Case{"o_a 8 x (1024 x 4096) Q8_0", q8, 8192, 4096, 1, 1024},
        Case{"o_b 4096 x 8192 Q8_0", q8, 4096, 8192}, Case{"router 256 x 4096 F16", f16, 256, 4096},
        Case{"compressor 2 x (1024 x 4096) F16", f16, 1024, 4096, 2},
        Case{"indexer q_b 8192 x 1024 F16", f16, 8192, 1024},
        Case{"hyper-connection mix 24 x 16384 F16", f16, 24, 16384},
        Case{"hyper-connection mix 24 x 16384 F32", TensorType::f32, 24, 16384},
        Case{"dense 8192 x 4096 Q4_K", TensorType::q4_k, 8192, 4096},
        Case{"dense 8192 x 4096 Q2_K", TensorType::q2_k, 8192, 4096},
        Case{"dense 8192 x 4096 IQ2_XXS", TensorType::iq2_xxs, 8192, 4096},
        Case{"dense 8192 x 4096 MXFP4", TensorType::mxfp4, 8192, 4096}}) {
    bench_gemm(stream, c);
  }
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
