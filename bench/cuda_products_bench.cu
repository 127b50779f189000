// Products of CUDA decoding at Flash shapes: dense ones, rounding of their inputs, routed experts with the
// shared one. Launches run in one graph over weights that together exceed L2, so that all bytes come from
// memory.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/gemv/quantize.hpp"
#include "backend/cuda/moe/experts.hpp"
#include "cuda_matrix.hpp"
#include "cuda_timing.hpp"

namespace ds4::cuda {
namespace {

using bench::graph_microseconds;
using bench::Matrix;
using bench::matrix_bytes;
using bench::Memory;
using bench::Report;
using format::TensorType;

constexpr size_t rotated_bytes = size_t{400} << 20;  // eight times L2
constexpr int launches = 40;

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

std::string name(const std::string& what, int rows) {
  return what + ", " + bench::counted(static_cast<uint64_t>(rows), "row");
}

struct Case {
  const char* what;
  TensorType type;
  uint32_t rows, cols;
  uint32_t jobs = 1;
  uint32_t rows_per_group = 0;
};

void bench_gemv(const Report& report, const Case& c) {
  const double bytes = c.jobs * matrix_bytes(c.type, c.rows, c.cols);
  const size_t copies =
      std::max<size_t>(1, static_cast<size_t>(static_cast<double>(rotated_bytes) / bytes)) + 1;
  std::vector<Matrix> matrices;
  for (size_t i = 0; i < copies * c.jobs; ++i) matrices.emplace_back(c.type, c.rows, c.cols);
  const uint32_t groups = c.rows_per_group == 0 ? 1 : c.rows / c.rows_per_group;
  const Activations x(max_rows, groups * c.cols);
  const Memory out(size_t{max_rows} * c.rows * c.jobs * 4);
  for (const int tokens : {1, 2, 4, 8, 16}) {
    const double microseconds = graph_microseconds(launches, [&](int i, cudaStream_t stream) {
      GemvJobs jobs;
      jobs.count = static_cast<int>(c.jobs);
      for (uint32_t j = 0; j < c.jobs; ++j) {
        const Matrix& m = matrices[(static_cast<size_t>(i) % copies) * c.jobs + j];
        jobs.job[j] = {m.device, x.device,         out.as<float>() + size_t{max_rows} * c.rows * j,
                       c.rows,   c.rows_per_group, c.rows_per_group == 0 ? 0 : c.cols};
      }
      return gemv(jobs, tokens, stream);
    });
    report.add({name(c.what, tokens), microseconds, bytes, 2.0 * tokens * c.rows * c.cols * c.jobs});
  }
}

void bench_quantize(const Report& report) {
  const Memory f32(max_rows * 4096 * 4), codes(max_rows * 4096), scales(max_rows * 4096 / 8);
  for (const int rows : {1, max_rows}) {
    const double microseconds = graph_microseconds(launches, [&](int, cudaStream_t stream) {
      return quantize(
          {f32.as<float>(), codes.as<int8_t>(), scales.as<float>(), static_cast<uint32_t>(rows), 4096, 4096},
          stream);
    });
    report.add({name("quantise 4096", rows), microseconds, rows * 4096 * 5.125, 0});
  }
}

constexpr uint32_t experts = 256, top = 6, width = 4096, features = 2048;

/// Expert choices of all launches, and how many distinct experts a launch touches on average.
class Choices {
 public:
  Choices() {
    std::mt19937 random(1);
    for (int i = 0; i < launches * max_rows; ++i) {
      std::set<int32_t> set;
      while (set.size() < top) set.insert(static_cast<int32_t>(random() % experts));
      host_.insert(host_.end(), set.begin(), set.end());
    }
    device_ = bench::upload(host_);
  }
  const int32_t* of(int launch) const { return device_.as<int32_t>() + size_t{max_rows} * top * launch; }
  double distinct(int tokens) const {
    size_t sum = 0;
    for (int i = 0; i < launches; ++i) {
      const auto first = host_.begin() + static_cast<ptrdiff_t>(max_rows * top) * i;
      sum += std::set<int32_t>(first, first + tokens * static_cast<ptrdiff_t>(top)).size();
    }
    return static_cast<double>(sum) / launches;
  }

 private:
  std::vector<int32_t> host_;
  Memory device_{0};
};

constexpr size_t shared_copies = 24;  // of the weights of the shared expert; routed experts rotate by choice

void bench_gate_up(const Report& report, TensorType type) {
  const Choices choices;
  const Matrix gate(type, experts * features, width), up(type, experts * features, width);
  std::vector<Matrix> shared;
  for (size_t i = 0; i < 2 * shared_copies; ++i) shared.emplace_back(TensorType::q8_0, features, width);
  const Activations x(max_rows, width);
  const Memory weights(max_rows * top * 4), mid(size_t{max_rows} * (top + 1) * features * 4);
  for (const int tokens : {1, 2, 4, 8, 16}) {
    const double microseconds = graph_microseconds(launches, [&](int i, cudaStream_t stream) {
      const size_t copy = static_cast<size_t>(i) % shared_copies;
      return experts_gate_up(
          {gate.device, up.device, shared[2 * copy].device, shared[2 * copy + 1].device, x.device,
           choices.of(i), weights.as<float>(), mid.as<float>(), static_cast<uint32_t>(tokens), top, features},
          stream);
    });
    report.add({name("experts gate+up " + std::string(format::type_name(type)) + " + shared Q8_0", tokens),
                microseconds,
                2 * (matrix_bytes(type, choices.distinct(tokens) * features, width) +
                     matrix_bytes(TensorType::q8_0, features, width)),
                4.0 * tokens * (top + 1) * features * width});
  }
}

void bench_down(const Report& report, TensorType type) {
  const Choices choices;
  const Matrix down(type, experts * width, features);
  std::vector<Matrix> shared;
  for (size_t i = 0; i < shared_copies; ++i) shared.emplace_back(TensorType::q8_0, width, features);
  const Activations x(size_t{max_rows} * (top + 1), features);
  const Memory out(size_t{max_rows} * width * 4);
  for (const int tokens : {1, 2, 4, 8, 16}) {
    const double microseconds = graph_microseconds(launches, [&](int i, cudaStream_t stream) {
      const size_t copy = static_cast<size_t>(i) % shared_copies;
      return experts_down({down.device, shared[copy].device, x.device, choices.of(i), out.as<float>(), width,
                           static_cast<uint32_t>(tokens), top, width},
                          stream);
    });
    report.add({name("experts down " + std::string(format::type_name(type)) + " + shared Q8_0", tokens),
                microseconds,
                matrix_bytes(type, choices.distinct(tokens) * width, features) +
                    matrix_bytes(TensorType::q8_0, width, features),
                2.0 * tokens * (top + 1) * features * width});
  }
}

void run(const Report& report) {
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
    bench_gemv(report, c);
  }
  bench_quantize(report);
  for (const TensorType type : {TensorType::iq2_xxs, TensorType::q4_k, TensorType::mxfp4}) {
    bench_gate_up(report, type);
  }
  for (const TensorType type : {TensorType::q2_k, TensorType::q4_k, TensorType::mxfp4}) {
    bench_down(report, type);
  }
}

}  // namespace
}  // namespace ds4::cuda

int main(int argc, char** argv) {
  ds4::cuda::run(ds4::bench::Report(ds4::bench::read_options(argc, argv), "products of decoding, Flash"));
  return 0;
}
