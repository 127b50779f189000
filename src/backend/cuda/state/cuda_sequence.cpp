#include "backend/cuda/state/cuda_sequence.hpp"

#include <algorithm>
#include <limits>

#include "backend/cuda/state/fill.hpp"

namespace ds4::cuda {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

size_t state_floats(uint32_t ratio, uint32_t dim) {
  return static_cast<size_t>(compressor_slots(static_cast<int>(ratio))) * model::compressor_width(ratio, dim);
}

size_t pages_for(uint64_t context, uint32_t ratio) {
  return ratio == 0 ? 0 : (context / ratio + rows_per_page) / rows_per_page;
}

}  // namespace

ArenaLayout::ArenaLayout(const model::ModelShape& shape, bool with_drafter) : drafter(with_drafter) {
  const auto place = [this](size_t size) {
    const size_t offset = bytes;
    bytes += aligned(size);
    return offset;
  };
  for (uint32_t ratio : shape.ratios) {
    Layer layer;
    layer.ring = place(size_t{ring_slots} * attention_row_bytes);
    if (ratio != 0) {
      const size_t size = state_floats(ratio, model::head_dim) * sizeof(float);
      layer.values = place(size);
      layer.scores = place(size);
    }
    if (ratio == model::csa_ratio) {
      const size_t size = state_floats(ratio, model::index_head_dim) * sizeof(float);
      layer.index_values = place(size);
      layer.index_scores = place(size);
    }
    layers.push_back(layer);
  }
  if (!drafter) return;
  drafter_ring = place(size_t{ring_slots} * attention_row_bytes);
  drafter_streams = place((retractable_tokens + 1) * model::streams * size_t{shape.width} * sizeof(float));
}

CudaState::CudaState(const model::ModelShape& shape, const RowPools& pools) {
  for (size_t l = 0; l < shape.layers; ++l) {
    compressed.emplace_back(pools.attention, attention_row_bytes);
    index.emplace_back(pools.index, index_row_bytes);
  }
}

CudaState CudaState::share() const {
  for (const RowTable& table : compressed) table.mark_shared();
  for (const RowTable& table : index) table.mark_shared();
  return *this;
}

void CudaState::advance(uint64_t count) {
  position += count;
  furthest = std::max(furthest, position);
}

void CudaState::clear() {
  position = furthest = imported = 0;
  for (RowTable& table : compressed) table.clear();
  for (RowTable& table : index) table.clear();
  logits.clear();
}

bool CudaState::retract(uint64_t count) {
  if (count > position || position - count + retractable_tokens < furthest) return false;
  position -= count;
  logits.resize(logits.size() - std::min<size_t>(count, logits.size()));
  return true;
}

bool CudaState::follows(const StateParts& parts) const {
  const uint64_t blocks = parts.is_frontier() ? parts.position / state_block_tokens * state_block_tokens
                                              : parts.position - state_block_tokens;
  return imported == blocks;
}

const KeptLogits* CudaState::kept_logits(size_t behind) const {
  return position > 0 && behind < logits.size() ? &logits[logits.size() - 1 - behind] : nullptr;
}

size_t CudaState::logit_bytes() const {
  size_t bytes = 0;
  for (const KeptLogits& row : logits) bytes += row.bytes;
  return bytes;
}

size_t CudaState::shared_bytes() const {
  size_t bytes = logit_bytes();
  for (const RowTable& table : compressed) bytes += table.memory_bytes();
  for (const RowTable& table : index) bytes += table.memory_bytes();
  return bytes;
}

CudaSequence::CudaSequence(const model::ModelShape& shape, const ArenaLayout& layout, const RowPools& pools,
                           cudaStream_t stream)
    : state(shape, pools), arena(layout.bytes, "state of a sequence"), shape_(shape), layout_(layout) {
  size_t addresses = 0;
  for (uint32_t ratio : shape.ratios) {
    table_offset_.push_back(addresses);
    table_size_.push_back(pages_for(shape.max_context, ratio));
    addresses += 2 * table_size_.back();
  }
  tables_ = DeviceBuffer<uint8_t*>(std::max<size_t>(addresses, 1), "page tables");
  std::vector<LayerCache> caches(shape.layers + (layout.drafter ? 1 : 0));
  caches_ = DeviceBuffer<LayerCache>(caches.size(), "layer caches");
  if (layout.drafter) caches.back().ring = arena.data() + layout.drafter_ring;
  for (size_t l = 0; l < shape.layers; ++l) {
    const ArenaLayout::Layer& place = layout.layers[l];
    uint8_t* base = arena.data();
    caches[l].ring = base + place.ring;
    caches[l].pages = table(l, false);
    caches[l].index_pages = table(l, true);
    caches[l].values = reinterpret_cast<float*>(base + place.values);
    caches[l].scores = reinterpret_cast<float*>(base + place.scores);
    caches[l].index_values = reinterpret_cast<float*>(base + place.index_values);
    caches[l].index_scores = reinterpret_cast<float*>(base + place.index_scores);
  }
  check(cudaMemcpyAsync(caches_.data(), caches.data(), caches_.bytes(), cudaMemcpyHostToDevice, stream),
        "layer caches");
  initialise(stream);
  check(cudaStreamSynchronize(stream), "new sequence");
}

float* CudaSequence::token_streams(uint64_t position) const {
  const size_t slot = position % (retractable_tokens + 1);
  return reinterpret_cast<float*>(arena.data() + layout_.drafter_streams) +
         slot * model::streams * shape_.width;
}

uint64_t CudaSequence::fixed_bytes(const model::ModelShape& shape, const ArenaLayout& layout) {
  uint64_t bytes = layout.bytes + shape.layers * sizeof(LayerCache);
  for (const uint32_t ratio : shape.ratios) {
    bytes += 2 * pages_for(shape.max_context, ratio) * sizeof(uint8_t*);
    if (ratio != 0) bytes += uint64_t{rows_per_page} * attention_row_bytes;
    if (ratio == model::csa_ratio) bytes += uint64_t{rows_per_page} * index_row_bytes;
  }
  return bytes;
}

uint8_t** CudaSequence::table(size_t layer, bool index) const {
  return tables_.data() + table_offset_[layer] + (index ? table_size_[layer] : 0);
}

void CudaSequence::initialise(cudaStream_t stream) {
  state.clear();
  for (size_t l = 0; l < shape_.layers; ++l) {
    const uint32_t ratio = shape_.ratios[l];
    const ArenaLayout::Layer& place = layout_.layers[l];
    const auto empty = [&](size_t values, size_t scores, uint32_t dim) {
      const size_t count = state_floats(ratio, dim);
      check(fill(reinterpret_cast<float*>(arena.data() + values), count, 0.0f, stream), "fill");
      check(fill(reinterpret_cast<float*>(arena.data() + scores), count,
                 -std::numeric_limits<float>::infinity(), stream),
            "fill");
    };
    if (ratio != 0) empty(place.values, place.scores, model::head_dim);
    if (ratio == model::csa_ratio) empty(place.index_values, place.index_scores, model::index_head_dim);
  }
}

void CudaSequence::prepare_rows(size_t count, cudaStream_t stream) {
  for (size_t l = 0; l < shape_.layers; ++l) {
    const uint32_t ratio = shape_.ratios[l];
    if (ratio == 0) continue;
    const size_t begin = state.position / ratio, end = (state.position + count) / ratio;
    if (begin == end) continue;
    state.compressed[l].prepare(begin, end, table(l, false), stream);
    if (ratio == model::csa_ratio) state.index[l].prepare(begin, end, table(l, true), stream);
  }
}

void CudaSequence::publish_tables(cudaStream_t stream) {
  for (size_t l = 0; l < shape_.layers; ++l) {
    const uint32_t ratio = shape_.ratios[l];
    if (ratio == 0) continue;
    state.compressed[l].publish(state.position / ratio, table(l, false), stream);
    if (ratio == model::csa_ratio) state.index[l].publish(state.position / ratio, table(l, true), stream);
  }
}

CudaStateImage::CudaStateImage(const CudaSequence& source, cudaStream_t stream)
    : state(source.state.share()), arena(source.arena.size(), "snapshot of a sequence") {
  check(cudaMemcpyAsync(arena.data(), source.arena.data(), arena.bytes(), cudaMemcpyDeviceToDevice, stream),
        "snapshot");
  check(cudaStreamSynchronize(stream), "snapshot");
}

}  // namespace ds4::cuda
