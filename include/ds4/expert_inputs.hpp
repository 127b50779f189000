// What the matrices of a model's routed experts were multiplied with, summed over tokens: the numbers of an
// importance file (docs/importance.md §1).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ds4/error.hpp"

namespace ds4 {

/// Sums over the tokens that an expert was chosen for. Divided by their number they are mean squares.
struct ExpertInputSums {
  uint32_t layers = 0, experts = 0, width = 0, expert_width = 0;
  std::vector<double> gate_up;  // [layers][experts][width]: squares of the normed input of gate and up
  std::vector<double> down;  // [layers][experts][expert_width]: of the input of down, with the route's weight
  std::vector<uint64_t> tokens;  // [layers][experts]
};

/// A place for such sums where the model is; SyncOptions::expert_inputs adds to it. Keeps the model alive.
class ExpertInputs {
 public:
  ExpertInputs(ExpertInputs&&) noexcept;
  ExpertInputs& operator=(ExpertInputs&&) noexcept;
  ~ExpertInputs();

  /// A copy of the sums as they are now. Errors: out_of_memory, a failure of the device.
  Result<ExpertInputSums> sums() const;

 private:
  friend class Engine;
  friend class Session;
  struct Impl;
  explicit ExpertInputs(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4
