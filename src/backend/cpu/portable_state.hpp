// Copies rows of a sequence's state from and to bytes in the layout of ds4/state.hpp.
#pragma once

#include <cstddef>

#include "backend/cpu/sequence_state.hpp"
#include "ds4/state.hpp"

namespace ds4::cpu {

/// All parts but the logits. Preconditions: rows are packed; the state holds what `parts` names, and `out`
/// has parts.bytes bytes.
void export_parts(const SequenceState& state, const StateParts& parts, std::byte* out);

/// Whether the state's compressed rows end where those of `parts` begin.
bool follows(const SequenceState& state, const StateParts& parts);

/// All parts but the logits, into a state of no tokens; a frontier gives it its position. Precondition:
/// follows(state, parts). Throws std::bad_alloc, and the state is to be cleared.
void import_parts(SequenceState& state, const StateParts& parts, const std::byte* bytes);

}  // namespace ds4::cpu
