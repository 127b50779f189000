// Copies rows of a sequence's state between device memory and bytes in the layout of ds4/state.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/state/cuda_sequence.hpp"
#include "backend/cuda/state/staged_copies.hpp"
#include "ds4/state.hpp"
#include "model/shape.hpp"

namespace ds4::cuda {

/// Has a stream of its own, so that passes go on meanwhile: images are frozen, and what is imported is seen
/// by nobody yet. Not thread-safe; calls wait for their copies. All throw CudaFailure.
class StateCopier {
 public:
  StateCopier(const model::ModelShape& shape, const ArenaLayout& layout);

  /// Preconditions: the image holds what `parts` name, with logits if they are among them; `out` has
  /// parts.bytes bytes.
  void export_parts(const CudaStateImage& image, const StateParts& parts, std::byte* out);
  /// All parts but the logits; a frontier gives the sequence its position. Precondition:
  /// sequence.state.follows(parts). After a failure the sequence is to be cleared.
  void import_parts(CudaSequence& sequence, const StateParts& parts, const std::byte* bytes);

 private:
  std::vector<DeviceSpan> spans_of(const CudaState& state, uint8_t* arena, const StateParts& parts) const;

  const model::ModelShape& shape_;
  const ArenaLayout& layout_;
  StagedCopies copies_;
};

}  // namespace ds4::cuda
