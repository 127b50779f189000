// State of one sequence in device memory (docs/model.md §2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"
#include "backend/cuda/sampling/last_logits.hpp"
#include "backend/cuda/state/page_pool.hpp"
#include "ds4/state.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// The page pools of a backend.
struct RowPools {
  std::shared_ptr<PagePool> attention =
      std::make_shared<PagePool>(size_t{rows_per_page} * attention_row_bytes);
  std::shared_ptr<PagePool> index = std::make_shared<PagePool>(size_t{rows_per_page} * index_row_bytes);
};

/// Where the fixed-size parts of a sequence lie in its arena: rings and compressor states of all layers.
struct ArenaLayout {
  struct Layer {
    size_t ring = 0, values = 0, scores = 0, index_values = 0, index_scores = 0;  // byte offsets
  };
  std::vector<Layer> layers;
  bool drafter = false;
  size_t drafter_ring = 0, drafter_streams = 0;  // byte offsets
  size_t bytes = 0;

  explicit ArenaLayout(const model::ModelShape& shape, bool with_drafter = false);
};

/// Everything but the device's page tables; copies share pages and logits.
struct CudaState {
  uint64_t position = 0;
  uint64_t furthest = 0;                    // what the rings reach back from: the most tokens there ever
                                            // were, more after an import
  uint64_t imported = 0;                    // tokens of imported blocks, until their frontier comes
  std::vector<RowTable> compressed, index;  // per layer; empty tables where a layer has none
  std::vector<KeptLogits> logits;           // of the newest tokens, the last one's last

  CudaState(const model::ModelShape& shape, const RowPools& pools);
  /// A copy that shares pages; both sides copy a page before they write to it again.
  CudaState share() const;
  void advance(uint64_t count);
  /// Gives up all tokens, pages and logits.
  void clear();
  /// Forgets the last `count` tokens. Rows and slots beyond the position are written over before they are
  /// read. False if the rings do not reach back that far.
  bool retract(uint64_t count);
  /// Whether these parts come next in an import.
  bool follows(const StateParts& parts) const;
  /// Of the token `behind` tokens before the last; null where there are none.
  const KeptLogits* kept_logits(size_t behind) const;
  /// Of pages and logits.
  size_t shared_bytes() const;
  size_t logit_bytes() const;
};

class CudaSequence final : public backend::Sequence {
 public:
  /// Throws CudaFailure.
  CudaSequence(const model::ModelShape& shape, const ArenaLayout& layout, const RowPools& pools,
               cudaStream_t stream);

  /// Device memory of a sequence beside its rows: arena, page tables, and what pages are not full.
  static uint64_t fixed_bytes(const model::ModelShape& shape, const ArenaLayout& layout);

  size_t position() const override { return state.position; }
  size_t state_bytes() const override { return arena.bytes() + state.shared_bytes(); }
  using Sequence::logit_summary;
  const sampling::LogitSummary* logit_summary(size_t behind) const override {
    const KeptLogits* kept = state.kept_logits(behind);
    return kept == nullptr ? nullptr : &kept->summary;
  }
  void clear() override { state.clear(); }

  /// Room for the rows that `count` more tokens complete. Call before a pass.
  void prepare_rows(size_t count, cudaStream_t stream);
  /// Empties compressors and tables; the state of a new sequence.
  void initialise(cudaStream_t stream);
  /// Writes all page addresses to the device after `state` was replaced.
  void publish_tables(cudaStream_t stream);

  const LayerCache* layer_caches() const {
    return caches_.data();
  }  // device memory; the drafter's is the last
  /// With a drafter: streams [4][d] after the last layer of the token at `position`, one of the newest
  /// retractable_tokens + 1; device memory.
  float* token_streams(uint64_t position) const;
  /// The table of a layer's index rows, in device memory.
  const uint8_t* const* index_pages(size_t layer) const { return table(layer, true); }

  CudaState state;
  DeviceBuffer<uint8_t> arena;

 private:
  uint8_t** table(size_t layer, bool index) const;

  const model::ModelShape& shape_;
  const ArenaLayout& layout_;
  std::vector<size_t> table_offset_;  // per layer, in addresses; index tables follow the compressed ones
  std::vector<size_t> table_size_;
  DeviceBuffer<uint8_t*> tables_;
  DeviceBuffer<LayerCache> caches_;
};

/// A frozen copy: its own arena, shared pages.
class CudaStateImage final : public backend::StateImage {
 public:
  /// Throws CudaFailure.
  CudaStateImage(const CudaSequence& source, cudaStream_t stream);
  size_t position() const override { return state.position; }
  size_t size_bytes() const override { return arena.bytes() + state.shared_bytes(); }
  size_t own_bytes() const override { return arena.bytes() + state.logit_bytes(); }

  CudaState state;
  DeviceBuffer<uint8_t> arena;
};

}  // namespace ds4::cuda
