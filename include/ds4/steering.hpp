// Directional steering: removing or strengthening a direction in what a model's layers compute
// (docs/steering.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ds4/error.hpp"

namespace ds4 {

/// The two parts of a layer. Their output, before it is written back to the streams, can be captured and
/// steered (docs/model.md §13).
enum class Component { attention, feed_forward };

/// How much of each layer's direction d is taken from the output y of its parts: y - scale d (d . y). 1
/// removes what lies along a unit vector, negative values strengthen it, 0 is off.
struct SteeringScales {
  float attention = 0;
  float feed_forward = 0;
};

/// One direction for every layer, unit vectors or zero, and where they come from.
struct SteeringDirections {
  uint32_t layers = 0, width = 0;
  std::vector<float> values;  // [layers][width]

  // What the .json file beside the .f32 file tells; empty or false where there is none.
  std::string model;       // path of the model file
  std::string model_name;  // its general.name
  Component component = Component::feed_forward;
  bool thinking = false;                     // prompts end with an open reasoning tag
  bool pair_normalize = false;               // mean of normalised differences of pairs
  bool orthogonalize = false;                // without what lies along the mean of the bad prompts
  std::string positions;                     // tokens that were averaged: "last", "last 4", "all"
  uint32_t first_layer = 0, last_layer = 0;  // those that have a direction; 0, 0 where nothing is told
  std::string system;                        // system text of the prompts
  std::string good_file, bad_file;           // as given
  std::string prompts_hash;                  // XXH3-128 of both files' prompts, in hexadecimal
  std::string note;
};

/// The text of the .json file.
std::string steering_json(const SteeringDirections& directions);

/// Reads a .f32 file (little-endian F32, layer by layer) and the .json beside it if there is one. There must
/// be layers * width values, all of them finite; errors name the file and say what was expected.
Result<SteeringDirections> read_directions(const std::string& path, uint32_t layers, uint32_t width);

}  // namespace ds4
