// Expert products of a prefill pass at Flash shapes: microseconds of a layer, GB/s of weights and TFLOP/s.
#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/gemm/half_experts.hpp"
#include "cuda_matrix.hpp"
#include "cuda_timing.hpp"

namespace ds4::cuda {
namespace {

using bench::Matrix;
using bench::matrix_bytes;
using bench::Memory;
using format::TensorType;

constexpr uint32_t experts = 256, top = 6, width = 4096, features = 2048, max_tokens = 4096;

/// Experts of tokens: at random, or the first ones for every token.
std::vector<int32_t> choices(bool same) {
  std::mt19937 random(1);
  std::vector<int32_t> ids;
  for (uint32_t t = 0; t < max_tokens; ++t) {
    std::set<int32_t> set;
    while (set.size() < top) {
      set.insert(static_cast<int32_t>(same ? set.size() : random() % experts));
    }
    ids.insert(ids.end(), set.begin(), set.end());
  }
  return ids;
}

struct Case {
  TensorType gate, down;
  std::vector<uint32_t> token_counts;
  bool same = false;
  PrefillKernel kernel = PrefillKernel::best;
};

void run_case(const bench::Report& report, const Case& c) {
  constexpr int launches = 3;  // the weights of one layer exceed L2 many times
  const std::vector<int32_t> host_ids = choices(c.same);
  const Memory ids = bench::upload(host_ids), weights(host_ids.size() * 4), x(size_t{max_tokens} * width * 2),
               out(size_t{max_tokens} * width * 4),
               scratch(half_experts_scratch_bytes(max_tokens, experts, top, width, features));
  const Matrix gate(c.gate, experts * features, width), up(c.gate, experts * features, width),
      down(c.down, experts * width, features), shared_gate(TensorType::q8_0, features, width),
      shared_up(TensorType::q8_0, features, width), shared_down(TensorType::q8_0, width, features);
  HalfExperts a;
  a.gate = gate.device;
  a.up = up.device;
  a.down = down.device;
  a.shared_gate = shared_gate.device;
  a.shared_up = shared_up.device;
  a.shared_down = shared_down.device;
  a.x = {x.as<__half>(), nullptr, width};
  a.ids = ids.as<int32_t>();
  a.weights = weights.as<float>();
  a.out = out.as<float>();
  a.out_stride = width;
  a.experts = experts;
  a.experts_per_token = top;
  a.scratch = scratch.as<void>();
  for (const uint32_t tokens : c.token_counts) {
    a.tokens = tokens;
    const auto begin = host_ids.begin();
    const double touched =
        static_cast<double>(std::set<int32_t>(begin, begin + ptrdiff_t{tokens} * top).size());
    bench::Line line;
    line.name = "experts " + std::string(format::type_name(c.gate)) + " " +
                std::string(format::type_name(c.down)) + (c.same ? ", all the same" : "") +
                (c.kernel == PrefillKernel::best ? "" : ", portable") + ", " +
                bench::counted(tokens, "token");
    line.microseconds = bench::graph_microseconds(
        launches, [&](int, cudaStream_t stream) { return half_experts(a, stream, c.kernel); });
    line.bytes = 2 * matrix_bytes(c.gate, touched * features, width) +
                 matrix_bytes(c.down, touched * width, features) +
                 3 * matrix_bytes(TensorType::q8_0, features, width);
    line.flops = 6.0 * tokens * (top + 1) * width * features;
    report.add(line);
  }
}

}  // namespace
}  // namespace ds4::cuda

int main(int argc, char** argv) {
  using namespace ds4::cuda;
  const ds4::bench::Report report(ds4::bench::read_options(argc, argv),
                                  "expert products of a prefill pass, Flash, shared expert Q8_0");
  const TensorType iq2 = TensorType::iq2_xxs, q2 = TensorType::q2_k;
  run_case(report, {iq2, q2, {1, 16, 64, 256, 512, 1024, 2048, 4096}});
  run_case(report, {iq2, q2, {256, 4096}, true});
  run_case(report, {iq2, q2, {256, 4096}, false, PrefillKernel::portable});
  for (const TensorType type : {TensorType::mxfp4, TensorType::q4_k, TensorType::q8_0, TensorType::f16}) {
    run_case(report, {type, type, {256, 2048, 4096}});
  }
  return 0;
}
