// A session's state as bytes ("portable state"): the same on every backend, for files and other machines.
// docs/formats.md §11 has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"

namespace ds4 {

class Session;

/// Tokens of a block: the largest window of a compressor, so that no compressed row needs two blocks.
inline constexpr size_t state_block_tokens = 128;
/// 448 FP8 codes, 7 exponents, 1 zero, 64 F16 values; and 64 bytes of FP4 codes, 4 exponents.
inline constexpr size_t state_attention_row_bytes = 584;
inline constexpr size_t state_index_row_bytes = 68;
/// Counts changes of the layout; part of Engine::fingerprint().
inline constexpr uint32_t state_layout_version = 1;

/// Rows that lie one after the other.
struct StatePart {
  size_t offset = 0;   // bytes from the start of the block or frontier
  uint64_t first = 0;  // number of the first compressed row, or position of the first token
  size_t count = 0;    // rows
  size_t row_bytes = 0;

  size_t bytes() const { return count * row_bytes; }
};

/// What a block or frontier holds of a layer, in this order. Parts that a layer lacks have no rows.
struct StateLayerParts {
  StatePart window;                      // key/value rows of tokens, 584 bytes each, oldest first
  StatePart attention;                   // compressed rows, 584 bytes each
  StatePart values, scores;              // F32 of tokens whose window is open; scores include the APE
  StatePart index;                       // index rows, 68 bytes each
  StatePart index_values, index_scores;  // likewise F32
};

/// Where everything lies in a block or frontier.
struct StateParts {
  uint64_t position = 0;  // tokens of the sequence up to its end
  std::vector<StateLayerParts> layers;
  // Only of a frontier; the first two only with a drafter.
  StatePart drafter_window;   // key/value rows; that of the last token is not made yet, and zero
  StatePart drafter_streams;  // F32 [4][d] after the last layer of the last token
  StatePart logits;           // F32 [V] after the last token
  size_t bytes = 0;

  bool is_frontier() const { return logits.count != 0; }
};

/// Sizes of the pieces of a session's state. Block b is the rows that tokens [128 b, 128 b + 128) complete,
/// in all layers; the frontier after p tokens is everything else that is needed to go on: the rows completed
/// since the last full block, windows, compressors, drafter, logits.
class StateLayout {
 public:
  StateLayout() = default;
  /// `ratios`: of each layer, 0, 4 or 128.
  StateLayout(std::vector<uint32_t> ratios, uint32_t width, uint32_t vocabulary, bool drafter);

  const std::vector<uint32_t>& ratios() const { return ratios_; }
  uint32_t width() const { return width_; }
  uint32_t vocabulary() const { return vocabulary_; }
  bool drafter() const { return drafter_; }  // a drafter's state is part of it

  size_t block_bytes() const;
  size_t frontier_bytes(uint64_t position) const;
  StateParts block(uint64_t number) const;
  /// Precondition: position > 0.
  StateParts frontier(uint64_t position) const;

 private:
  std::vector<uint32_t> ratios_;
  uint32_t width_ = 0, vocabulary_ = 0;
  bool drafter_ = false;
};

/// A session that is put together from bytes (Engine::import_state). Not thread-safe itself, but it may be
/// used from another thread than the engine's sessions, which go on meanwhile. Bytes are not trusted: any
/// content is safe, wrong content computes nonsense or not_finite.
class StateImport {
 public:
  StateImport(StateImport&&) noexcept;
  StateImport& operator=(StateImport&&) noexcept;
  ~StateImport();

  size_t blocks() const;        // that the tokens fill
  size_t blocks_added() const;  // so far
  /// The next block, in order. Errors: invalid_argument for another size than StateLayout::block_bytes(), or
  /// if there is no further block; nothing has changed then. After out_of_memory or a failure of the device
  /// the import is over, and its memory is given back.
  Result<void> add_block(std::span<const std::byte> bytes);
  /// The frontier, after all blocks; ends the import. The session stands where it was exported. It has one
  /// state to go back to, the present one. Errors: invalid_argument for another size than
  /// StateLayout::frontier_bytes(), or if blocks are missing, and nothing has changed; not_finite if no token
  /// can be chosen from the logits; out_of_memory.
  Result<Session> finish(std::span<const std::byte> frontier);

 private:
  friend class Engine;
  struct Impl;
  explicit StateImport(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4
