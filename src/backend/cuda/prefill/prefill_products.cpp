#include "backend/cuda/prefill/prefill_products.hpp"

#include <algorithm>
#include <cstdint>

namespace ds4::cuda {
namespace {

HalfGemmJob product(const DeviceMatrix& w, const __half* high, const __half* low, uint32_t stride) {
  HalfGemmJob job;
  job.w = w;
  job.x = {high, low, stride};
  job.out_stride = w.rows;
  return job;
}

HalfGemmJob to_f32(HalfGemmJob job, float* out) {
  job.out = out;
  return job;
}

HalfGemmJob to_f16(HalfGemmJob job, __half* out) {
  job.out_half = out;
  return job;
}

}  // namespace

std::vector<HalfGemmJob> input_products(const model::ModelShape& shape, const DeviceLayer& layer,
                                        const ChunkBuffers& b, bool indexing) {
  std::vector<HalfGemmJob> jobs;
  const auto add = [&](const DeviceMatrix& w, float* out, const __half* low = nullptr) {
    jobs.push_back(to_f32(product(w, b.high, low, shape.width), out));
  };
  add(layer.q_a, b.q_low);
  add(layer.kv, b.kv);
  if (layer.ratio != 0) {
    add(layer.compressor.kv, b.values);
    add(layer.compressor.gate, b.gates);
  }
  if (layer.ratio == model::csa_ratio) {
    add(layer.index_compressor.kv, b.index_values);
    add(layer.index_compressor.gate, b.index_gates);
    if (indexing) add(layer.index_proj, b.index_weights, b.low);
  }
  return jobs;
}

std::vector<HalfGemmJob> query_products(const model::ModelShape& shape, const DeviceLayer& layer,
                                        const ChunkBuffers& b, bool indexing) {
  std::vector<HalfGemmJob> jobs;
  jobs.push_back(to_f16(product(layer.q_b, b.q_low_half, nullptr, shape.q_rank), b.query));
  if (layer.ratio == model::csa_ratio && indexing) {
    jobs.push_back(to_f32(product(layer.index_q_b, b.q_low_half, nullptr, shape.q_rank), b.index_query));
  }
  return jobs;
}

HalfGemmJob output_a_product(const model::ModelShape& shape, const DeviceLayer& layer,
                             const ChunkBuffers& b) {
  HalfGemmJob job = to_f16(product(layer.output_a, b.attended, nullptr, shape.q_width()), b.output_low);
  job.rows_per_group = shape.output_rank;
  job.group_cols = shape.group_width();
  return job;
}

HalfGemmJob output_b_product(const model::ModelShape& shape, const DeviceLayer& layer,
                             const ChunkBuffers& b) {
  return to_f32(product(layer.output_b, b.output_low, nullptr, shape.low_width()), b.sublayer);
}

HalfGemmJob router_product(const model::ModelShape& shape, const DeviceLayer& layer, const ChunkBuffers& b) {
  return to_f32(product(layer.router, b.high, b.low, shape.width), b.router);
}

size_t products_scratch_bytes(const model::ModelShape& shape, const DeviceLayer& layer) {
  // Only whether the low plane is there matters.
  ChunkBuffers counting(shape, 1, 0, nullptr);
  counting.low = reinterpret_cast<__half*>(uintptr_t{256});
  const HalfGemmJob output[] = {output_a_product(shape, layer, counting),
                                output_b_product(shape, layer, counting),
                                router_product(shape, layer, counting)};
  size_t bytes = std::max(half_gemm_scratch_bytes(input_products(shape, layer, counting, true)),
                          half_gemm_scratch_bytes(query_products(shape, layer, counting, true)));
  for (const HalfGemmJob& job : output) bytes = std::max(bytes, half_gemm_scratch_bytes({&job, 1}));
  return bytes;
}

}  // namespace ds4::cuda
