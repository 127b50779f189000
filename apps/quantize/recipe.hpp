// Which number format each tensor gets.
#pragma once

#include <optional>
#include <string_view>

#include "format/tensor_type.hpp"
#include "model/tensor_list.hpp"

namespace ds4::quantize {

/// f32, f16 and bf16 keep F32 tensors of the checkpoint (hyper-connection mixers, ape, norms) in F32, so that
/// bf16 loses nothing of a BF16 checkpoint. q8 is the smallest: Q8_0 matrices, 16-bit small matrices.
enum class Recipe { f32, f16, bf16, q8 };

std::optional<Recipe> parse_recipe(std::string_view name);
std::string_view recipe_name(Recipe recipe);

format::TensorType tensor_type_for(Recipe recipe, model::TensorRole role);

}  // namespace ds4::quantize
