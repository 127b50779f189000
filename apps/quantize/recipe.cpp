#include "recipe.hpp"

#include <utility>

namespace ds4::quantize {
namespace {

using format::TensorType;
using model::TensorRole;

constexpr std::pair<std::string_view, Recipe> recipes[] = {
    {"f32", Recipe::f32}, {"f16", Recipe::f16}, {"bf16", Recipe::bf16}, {"q8", Recipe::q8}};

TensorType matrix_type(Recipe recipe) {
  switch (recipe) {
    case Recipe::f32:
      return TensorType::f32;
    case Recipe::f16:
      return TensorType::f16;
    case Recipe::bf16:
      return TensorType::bf16;
    case Recipe::q8:
      break;
  }
  return TensorType::q8_0;
}

}  // namespace

std::optional<Recipe> parse_recipe(std::string_view name) {
  for (const auto& [spelling, recipe] : recipes) {
    if (spelling == name) return recipe;
  }
  return std::nullopt;
}

std::string_view recipe_name(Recipe recipe) {
  for (const auto& [spelling, value] : recipes) {
    if (value == recipe) return spelling;
  }
  return "unknown";
}

TensorType tensor_type_for(Recipe recipe, TensorRole role) {
  switch (role) {
    case TensorRole::table:
      return TensorType::i32;
    case TensorRole::vector:
      return TensorType::f32;
    case TensorRole::mixer:
      return recipe == Recipe::q8 ? TensorType::f16 : TensorType::f32;
    case TensorRole::embedding:
    case TensorRole::small_matrix:
      return recipe == Recipe::q8 ? TensorType::f16 : matrix_type(recipe);
    default:
      return matrix_type(recipe);
  }
}

}  // namespace ds4::quantize
