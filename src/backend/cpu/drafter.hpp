// The MTP drafter on the CPU: its rows follow the sequence, its drafts do not change it (docs/model.md §12).
//
// The row at position p pairs the streams after token p with the embedding of token p + 1 and predicts token
// p + 2.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/forward.hpp"

namespace ds4::cpu {

/// After a pass over `batch` whose final streams are still in scratch.streams: adds the drafter's KV rows
/// whose next token is now known, and keeps the streams of the newest token of each sequence.
void update_drafter(const ForwardContext& context, const Batch& batch);

/// Proposes tokens, each from the drafter's own streams and the draft before. not_finite if it computes NaN.
Result<std::vector<backend::Draft>> make_drafts(const ForwardContext& context, const SequenceState& state,
                                                const backend::DraftRequest& request);

}  // namespace ds4::cpu
