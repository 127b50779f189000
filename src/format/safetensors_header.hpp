// The two JSON documents of the safetensors layout: the header of a shard and the index of a folder.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ds4/error.hpp"
#include "format/safetensors.hpp"

namespace ds4::format {

/// Parses and checks one shard. `file` names it in errors; tensors come in file order.
Result<std::vector<SafetensorsEntry>> parse_safetensors_shard(std::span<const std::byte> bytes,
                                                              const std::string& file);

/// One entry of "weight_map": tensor name and shard file name.
using ShardOfTensor = std::pair<std::string, std::string>;

/// The "weight_map" of model.safetensors.index.json, sorted by tensor. Shard names are plain file names.
Result<std::vector<ShardOfTensor>> parse_safetensors_index(std::string_view json, const std::string& file);

}  // namespace ds4::format
