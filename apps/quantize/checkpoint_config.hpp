// config.json of an official checkpoint folder, checked against the architecture.
#pragma once

#include <cstdint>
#include <string>

#include "ds4/error.hpp"
#include "model/shape.hpp"

namespace ds4::quantize {

struct CheckpointConfig {
  model::ModelShape shape;  // counts, ratios, variant and its usual name
  uint32_t mtp_layers = 0;  // num_nextn_predict_layers
  uint32_t bos_token = 0;
  uint32_t eos_token = 0;
};

/// Reads `folder`/config.json. Errors name the file, the key, and both values.
Result<CheckpointConfig> read_checkpoint_config(const std::string& folder);

}  // namespace ds4::quantize
