// What a disk store has to know of a model, read from its file without the weights.
#pragma once

#include <cstdint>
#include <string>

#include "ds4/error.hpp"
#include "ds4/state.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::store {

struct ModelFiles {
  std::string model_path;
  std::string mtp_path;  // file with a drafter; empty: none, or the one in the model file
  bool exact_activations = false;
};

/// The states of engines that are opened with the same files and without steering.
struct ModelStates {
  StateLayout layout;
  Tokenizer tokenizer;
  std::string fingerprint;  // Engine::fingerprint()
};

/// Reads metadata, tensor list and up to 12 KiB of each tensor. Errors: as Engine::open()'s.
Result<ModelStates> read_model_states(const ModelFiles& files);

}  // namespace ds4::store
