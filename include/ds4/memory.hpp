// What a model needs in memory, known before any of it is taken.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ds4 {

/// Bytes on one device: those of the weights and buffers that an Engine takes, and of every session. On the
/// CPU the weights are a mapping of the file, which the system may drop and read again.
struct MemoryPlan {
  struct Part {
    std::string name;  // "routed experts"
    uint64_t bytes = 0;
  };

  std::string device;            // "cuda (NVIDIA H200)"
  std::vector<Part> weights;     // by kind, in the order of a layer
  uint64_t scratch_bytes = 0;    // buffers of passes, for the largest
  uint64_t session_bytes = 0;    // of a session whatever its length: window, open compressor windows, tables
  uint64_t anchor_bytes = 0;     // the most that a session keeps of earlier states to go back to
  double bytes_per_token = 0;    // compressed rows and index rows
  uint64_t available_bytes = 0;  // free on the device now, before anything of this plan is taken

  uint64_t weight_bytes() const;
  /// Of one session of `context` tokens when it is full.
  uint64_t session_total_bytes(uint64_t context) const;
  /// What is left for sessions; 0 if not even weights and scratch fit.
  uint64_t left_bytes() const;
  /// How many full sessions of `context` tokens fit beside each other.
  uint64_t sessions(uint64_t context) const;
};

/// The plan as a table of some twenty lines, for sessions of `context` tokens.
std::string memory_table(const MemoryPlan& plan, uint64_t context);

}  // namespace ds4
