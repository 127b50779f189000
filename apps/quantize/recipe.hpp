// Which number format each tensor gets: a named preset, and rules of the user before it (docs/quantize.md
// §4).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/tensor_type.hpp"
#include "model/tensor_list.hpp"

namespace ds4::quantize {

/// f32, f16 and bf16 keep F32 tensors of the checkpoint (hyper-connection mixers, ape, norms) in F32, so that
/// bf16 loses nothing of a BF16 checkpoint. The others have Q8_0 projections, shared experts and output,
/// 16-bit small matrices, and routed experts in the format they are named after.
enum class Preset {
  f32,
  f16,
  bf16,
  q8,
  mxfp4,
  q4,     // Q4_K
  q2_q4,  // q4 in the last layers (37-42 of Flash), q2 in the others
  q2,     // IQ2_XXS for gate and up, Q2_K for down
};

class Recipe {
 public:
  Recipe(Preset preset = Preset::q8);  // NOLINT: implicit on purpose

  static std::optional<Recipe> named(std::string_view name);
  /// A recipe file; errors name the file and the line.
  static Result<Recipe> read(const std::string& path);
  static Result<Recipe> parse(std::string_view text, const std::string& path);
  /// PATTERN=FORMAT, before the rules that are there already but after those added so before.
  Result<void> add_rule(std::string_view text);

  /// The preset's name, with the number of rules if there are any: "q2 + 3 rules".
  std::string name() const;
  Preset preset() const { return preset_; }
  /// True for a plain preset that encodes without search: such files say nothing about how they were made.
  bool is_plain() const { return rules_.empty() && preset_ <= Preset::q8; }

  /// `layers` is the number of layers of the model. Vectors are F32, tables I32; mixers take only rules that
  /// name F32, F16 or BF16.
  format::TensorType type_for(std::string_view tensor, model::TensorRole role, uint32_t layers) const;

  /// An error that names a rule without a tensor to apply to.
  Result<void> check_rules(std::span<const model::TensorSlot> slots) const;

 private:
  struct Rule {
    std::string pattern;
    format::TensorType type;
    std::string place;  // for messages: the line of a file, or the option
  };
  static bool applies(const Rule& rule, std::string_view tensor, model::TensorRole role);
  Result<void> add_rule(std::string_view pattern, std::string_view type, std::string place,
                        std::vector<Rule>::iterator position);

  Preset preset_;
  std::vector<Rule> rules_;  // the first that applies decides
  std::ptrdiff_t option_rules_ = 0;
};

/// True if `name` fits `pattern`: "*" stands for any characters, "{3,5-8}" for one of these whole numbers. An
/// error for a pattern that is not well-formed; the name may be empty then.
Result<bool> matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace ds4::quantize
