// The dense matrix products of a layer of a prefill chunk, as jobs of half_gemm().
#pragma once

#include <vector>

#include "backend/cuda/device_weights.hpp"
#include "backend/cuda/gemm/half_gemm.hpp"
#include "backend/cuda/prefill/chunk_buffers.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// Of the sublayer's input: query rank, KV rows, compressors; with `indexing` the head weights of the
/// indexer.
std::vector<HalfGemmJob> input_products(const model::ModelShape& shape, const DeviceLayer& layer,
                                        const ChunkBuffers& buffers, bool indexing);
/// Of the normalised query rank: queries; with `indexing` index queries.
std::vector<HalfGemmJob> query_products(const model::ModelShape& shape, const DeviceLayer& layer,
                                        const ChunkBuffers& buffers, bool indexing);
/// Of the attended heads, group by group.
HalfGemmJob output_a_product(const model::ModelShape& shape, const DeviceLayer& layer,
                             const ChunkBuffers& buffers);
HalfGemmJob output_b_product(const model::ModelShape& shape, const DeviceLayer& layer,
                             const ChunkBuffers& buffers);
HalfGemmJob router_product(const model::ModelShape& shape, const DeviceLayer& layer,
                           const ChunkBuffers& buffers);

/// Scratch for any of these.
size_t products_scratch_bytes(const model::ModelShape& shape, const DeviceLayer& layer);

}  // namespace ds4::cuda
