// For which engines a session's state, as bytes, holds.
#pragma once

#include <cstdint>
#include <string>

#include "ds4/steering.hpp"
#include "format/gguf.hpp"

namespace ds4 {

struct FingerprintSource {
  const format::GgufFile& model;
  const format::GgufFile* drafter_file = nullptr;  // if it is apart
  bool drafter = false;
  std::string steering;  // digest_directions()
  bool exact_activations = false;
};

/// 32 hexadecimal digits: XXH3-128 of metadata, tensor directory, the first, middle and last 4 KiB of every
/// tensor, and the rest of the source.
std::string fingerprint(const FingerprintSource& source);

/// Of what is added to the outputs of the layers; empty without directions.
std::string digest_directions(const SteeringDirections& directions);

}  // namespace ds4
