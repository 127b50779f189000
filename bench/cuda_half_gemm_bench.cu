// Dense F16 products of CUDA prefill at Flash shapes, with the conversion of their weights: microseconds and
// TFLOP/s, for single products and for all of a layer. Launches rotate among weights that together exceed L2.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/gemm/half_gemm.hpp"
#include "backend/cuda/gemm/half_weights.hpp"
#include "backend/cuda/repack/repack.hpp"
#include "cuda_timing.hpp"

namespace ds4::bench {
namespace {

using cuda::HalfGemmJob;
using format::TensorType;

constexpr size_t rotated_bytes = size_t{200} << 20;  // four times L2
constexpr uint32_t most_tokens = 4096;
constexpr uint32_t token_counts[] = {17, 64, 256, 1024, 2048, 4096};

/// One product of a call.
struct Product {
  TensorType type;
  uint32_t rows, cols;
  bool half_out = false;
  bool precise = false;
  uint32_t groups = 1;
};

struct Call {
  std::string what;
  std::vector<Product> products;
};

/// Weights of a call, in as many copies as rotate, and memory for what it reads and writes.
class Memories {
 public:
  explicit Memories(const Call& call) {
    size_t bytes = 0;
    uint32_t widest = 0;
    for (const Product& p : call.products) {
      bytes += p.rows * format::row_bytes(p.type, p.cols);
      widest = std::max(widest, p.cols * p.groups);
    }
    copies_ = std::min<size_t>(4, rotated_bytes / bytes + 1);
    high_ = std::make_unique<Memory>(size_t{most_tokens} * widest * 2);
    low_ = std::make_unique<Memory>(size_t{most_tokens} * widest * 2);
    for (size_t copy = 0; copy < copies_; ++copy) {
      jobs_.emplace_back();
      for (const Product& p : call.products) jobs_.back().push_back(job(p, copy == 0));
    }
    for (size_t i = 0; i < call.products.size(); ++i) {
      for (size_t copy = 1; copy < copies_; ++copy) {
        jobs_[copy][i].out = jobs_[0][i].out;
        jobs_[copy][i].out_half = jobs_[0][i].out_half;
      }
    }
    scratch_ = std::make_unique<Memory>(cuda::half_gemm_scratch_bytes(jobs_[0]));
  }
  const std::vector<HalfGemmJob>& jobs(int launch) const {
    return jobs_[static_cast<size_t>(launch) % copies_];
  }
  void* scratch() const { return scratch_->as<void>(); }

 private:
  uint8_t* plane(const Product& p, cuda::Plane which) {
    weights_.emplace_back(cuda::plane_bytes(p.type, p.rows, p.cols, which));
    return weights_.back().as<uint8_t>();
  }
  HalfGemmJob job(const Product& p, bool with_out) {
    HalfGemmJob job;
    job.w = {p.type,
             p.rows,
             p.cols,
             plane(p, cuda::Plane::quants),
             plane(p, cuda::Plane::scales),
             plane(p, cuda::Plane::extras)};
    job.x = {high_->as<__half>(), p.precise ? low_->as<__half>() : nullptr, p.cols * p.groups};
    job.out_stride = p.rows;
    if (p.groups > 1) {
      job.rows_per_group = p.rows / p.groups;
      job.group_cols = p.cols;
    }
    if (!with_out) return job;
    outs_.emplace_back(size_t{most_tokens} * p.rows * (p.half_out ? 2 : 4));
    if (p.half_out) {
      job.out_half = outs_.back().as<__half>();
    } else {
      job.out = outs_.back().as<float>();
    }
    return job;
  }

  size_t copies_ = 1;
  std::unique_ptr<Memory> high_, low_, scratch_;
  std::vector<Memory> weights_, outs_;
  std::vector<std::vector<HalfGemmJob>> jobs_;
};

double flops(const Call& call, uint32_t tokens) {
  double sum = 0;
  for (const Product& p : call.products) sum += 2.0 * p.rows * p.cols * tokens;
  return sum;
}

int launches(uint32_t tokens) {
  return tokens > 256 ? 4 : 12;
}

double time_call(const Memories& memories, uint32_t tokens, cuda::PrefillKernel kernel) {
  return graph_microseconds(launches(tokens), [&](int i, cudaStream_t stream) {
    return cuda::half_gemm(memories.jobs(i), static_cast<int>(tokens), memories.scratch(), stream, kernel);
  });
}

void bench_conversion(const Report& report, TensorType type) {
  const Call call = {"", {{type, 32768, 1024}}};
  const Memories memories(call);
  const double microseconds = graph_microseconds(8, [&](int i, cudaStream_t stream) {
    const cuda::HalfWeights weights = {memories.jobs(i)[0].w, static_cast<__half*>(memories.scratch()),
                                       nullptr};
    return cuda::half_weights({&weights, 1}, stream);
  });
  report.add({std::string(format::type_name(type)) + " to F16, 32768 x 1024", microseconds,
              32768.0 * static_cast<double>(format::row_bytes(type, 1024)) + 32768.0 * 2048, 0});
}

void run(const Report& report) {
  const TensorType q8 = TensorType::q8_0, f16 = TensorType::f16;
  for (const TensorType type :
       {q8, TensorType::f32, TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs, TensorType::mxfp4}) {
    bench_conversion(report, type);
  }
  const Call layer[] = {
      {"q_a, kv, 2 compressor, 2 index compressor, index ones",
       {{q8, 1024, 4096},
        {q8, 512, 4096},
        {f16, 1024, 4096},
        {f16, 1024, 4096},
        {f16, 256, 4096},
        {f16, 256, 4096},
        {f16, 64, 4096, false, true}}},
      {"q_b 32768 x 1024", {{q8, 32768, 1024, true}}},
      {"index queries 8192 x 1024", {{f16, 8192, 1024}}},
      {"o_a 8 x (1024 x 4096)", {{q8, 8192, 4096, true, false, 8}}},
      {"o_b 4096 x 8192", {{q8, 4096, 8192}}},
      {"router 256 x 4096, with low plane", {{f16, 256, 4096, false, true}}},
  };
  const Call others[] = {
      {"hyper-connection mix 24 x 16384 F16, with low plane", {{f16, 24, 16384, false, true}}},
      {"q_a, kv, 2 compressor (ratio 128)",
       {{q8, 1024, 4096}, {q8, 512, 4096}, {f16, 512, 4096}, {f16, 512, 4096}}}};
  double sums[std::size(token_counts)] = {}, sum_flops[std::size(token_counts)] = {};
  for (const bool in_layer : {true, false}) {
    for (const Call& call : in_layer ? std::span<const Call>(layer) : std::span<const Call>(others)) {
      const Memories memories(call);
      for (size_t i = 0; i < std::size(token_counts); ++i) {
        const uint32_t tokens = token_counts[i];
        const double microseconds = time_call(memories, tokens, cuda::PrefillKernel::best);
        report.add({std::to_string(tokens) + " " + call.what, microseconds, 0, flops(call, tokens)});
        if (!in_layer) continue;
        sums[i] += microseconds;
        sum_flops[i] += flops(call, tokens);
      }
      if (&call != &layer[1]) continue;
      report.add({"2048 " + call.what + ", portable kernel",
                  time_call(memories, 2048, cuda::PrefillKernel::portable), 0, flops(call, 2048)});
    }
  }
  for (size_t i = 0; i < std::size(token_counts); ++i) {
    report.add({std::to_string(token_counts[i]) + " all of a ratio-4 layer", sums[i], 0, sum_flops[i]});
  }
}

}  // namespace
}  // namespace ds4::bench

int main(int argc, char** argv) {
  ds4::bench::run(ds4::bench::Report(ds4::bench::read_options(argc, argv), "dense products of prefill"));
  return 0;
}
