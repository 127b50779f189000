#include <algorithm>

#include "backend/cpu/cpu_backend.hpp"
#include "backend/cpu/kv_rows.hpp"
#include "backend/cpu/scratch.hpp"
#include "backend/cpu/sequence_state.hpp"
#include "base/system_memory.hpp"
#include "model/weight_groups.hpp"

namespace ds4::cpu {
namespace {

// A row of activations in the two rounded forms: codes, and 16 bytes of scales and sums for 32 columns.
uint64_t rounded_bytes(uint64_t cols) {
  return 2 * (cols + cols / 2);
}

// The members of Scratch for a pass of `chunk` tokens, but for the index scores, which grow with the context.
uint64_t scratch_bytes(const model::ModelShape& s, uint64_t chunk) {
  const uint64_t d = s.width, floats = sizeof(float);
  const uint64_t widest = model::compressor_width(model::csa_ratio, model::head_dim);
  const uint64_t token =
      floats * (4 * d + 2 * model::mix_width + 3 * d + s.q_rank + 2 * model::head_dim + 2 * widest +
                s.index_heads + s.experts + 4 * s.experts_used + 2 * s.expert_width) +
      rounded_bytes(d + s.q_rank + s.expert_width);
  const uint64_t block = std::min<uint64_t>(chunk, attention_block_rows);
  const uint64_t block_row =
      floats * (s.q_width() + s.low_width() + s.index_heads * model::index_head_dim + s.index_top_k) +
      rounded_bytes(s.q_width() + s.low_width());
  const uint64_t slots =
      std::max<uint64_t>(chunk, std::min<uint64_t>(chunk * s.experts_used, expert_group_slots));
  return chunk * token + block * block_row +
         slots * (floats * s.expert_width + rounded_bytes(s.expert_width));
}

}  // namespace

MemoryPlan plan_cpu_memory(const model::ModelShape& shape, const model::ModelWeights& weights,
                           const model::MtpWeights* mtp, size_t chunk) {
  MemoryPlan plan;
  plan.device = "cpu";
  plan.available_bytes = available_memory_bytes();
  const auto bytes_of = [](const model::Tensor& tensor, model::TensorRole) { return tensor.size_bytes; };
  plan.weights = model::group_weights(shape, weights, bytes_of);
  if (mtp != nullptr) plan.weights.push_back({"drafter", model::mtp_bytes(shape, *mtp, bytes_of)});
  plan.scratch_bytes = scratch_bytes(shape, chunk);
  const RowCodec codec(true);
  for (const uint32_t ratio : shape.ratios) {
    plan.session_bytes += RawWindow::slots * codec.attention_bytes();
    if (ratio == 0) continue;
    plan.session_bytes += CompressorState(ratio, model::head_dim).memory_bytes();
    plan.bytes_per_token += static_cast<double>(codec.attention_bytes()) / ratio;
    if (ratio != model::csa_ratio) continue;
    plan.session_bytes += CompressorState(ratio, model::index_head_dim).memory_bytes();
    plan.bytes_per_token += static_cast<double>(codec.index_bytes()) / ratio;
  }
  return plan;
}

}  // namespace ds4::cpu
