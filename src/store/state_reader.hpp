// Reads the blocks of a state from their files, one piece ahead of whoever uses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "store/hash128.hpp"
#include "store/store_files.hpp"

namespace ds4::store {

/// A segment as it has to be.
struct ExpectedSegment {
  Hash128 name;
  Hash128 parent;
  uint64_t first_block = 0;
  size_t blocks = 0;              // of it that are wanted, from its first
  std::span<const Token> tokens;  // of those
};

struct ReadPlan {
  const StoreFolder* folder = nullptr;
  Hash128 fingerprint;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
  std::vector<ExpectedSegment> segments;
};

struct ReadFailure {
  Error error;
  size_t segment = 0;      // of the plan
  bool from_sink = false;  // the files are sound
};

/// Hands every block to `use`, checked, in order. A second thread reads and checks in pieces of about 1 MiB
/// while the caller's thread uses them; two pieces are in memory at a time. Nothing: it went well.
std::optional<ReadFailure> read_blocks(const ReadPlan& plan,
                                       const std::function<Result<void>(std::span<const std::byte>)>& use);

}  // namespace ds4::store
