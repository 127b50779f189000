#include "recipe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "base/quote.hpp"
#include "text_lines.hpp"

namespace ds4::quantize {
namespace {

using format::TensorType;
using model::TensorRole;

constexpr size_t longest_file = 1 << 20;

constexpr std::pair<std::string_view, Preset> presets[] = {
    {"f32", Preset::f32},     {"f16", Preset::f16}, {"bf16", Preset::bf16},   {"q8", Preset::q8},
    {"mxfp4", Preset::mxfp4}, {"q4", Preset::q4},   {"q2-q4", Preset::q2_q4}, {"q2", Preset::q2}};

std::string_view preset_name(Preset preset) {
  for (const auto& [name, value] : presets) {
    if (value == preset) return name;
  }
  return "unknown";
}

std::optional<Preset> preset_named(std::string_view name) {
  for (const auto& [known, preset] : presets) {
    if (known == name) return preset;
  }
  return std::nullopt;
}

/// Formats as people write them: q4_k, Q4K and q4-K are the same.
std::optional<TensorType> type_named(std::string_view text) {
  const auto plain = [](std::string_view name) {
    std::string out;
    for (const char c : name) {
      if (c == '_' || c == '-') continue;
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
    return out;
  };
  for (const TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16, TensorType::q8_0,
                                TensorType::q4_k, TensorType::q2_k, TensorType::iq2_xxs, TensorType::mxfp4}) {
    if (plain(format::type_name(type)) == plain(text)) return type;
  }
  return std::nullopt;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// A number at the begin of `text`, which becomes shorter by it.
std::optional<uint32_t> take_number(std::string_view& text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.empty() || !is_digit(text.front())) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

/// One element of a pattern: a character, any characters, or a number out of ranges.
struct Element {
  enum class Kind { character, any, number } kind = Kind::character;
  char character = 0;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
};

std::optional<Element> take_ranges(std::string_view& pattern) {
  Element element{Element::Kind::number, 0, {}};
  do {
    pattern.remove_prefix(1);  // the brace or the comma
    const auto first = take_number(pattern);
    if (!first) return std::nullopt;
    uint32_t last = *first;
    if (pattern.starts_with('-')) {
      pattern.remove_prefix(1);
      const auto number = take_number(pattern);
      if (!number || *number < *first) return std::nullopt;
      last = *number;
    }
    element.ranges.emplace_back(*first, last);
  } while (pattern.starts_with(','));
  if (!pattern.starts_with('}')) return std::nullopt;
  pattern.remove_prefix(1);
  return element;
}

std::optional<std::vector<Element>> parse_pattern(std::string_view pattern) {
  std::vector<Element> elements;
  while (!pattern.empty()) {
    if (pattern.front() == '{') {
      auto element = take_ranges(pattern);
      if (!element) return std::nullopt;
      elements.push_back(std::move(*element));
      continue;
    }
    if (pattern.front() == '}') return std::nullopt;
    const bool any = pattern.front() == '*';
    elements.push_back({any ? Element::Kind::any : Element::Kind::character, pattern.front(), {}});
    pattern.remove_prefix(1);
  }
  if (elements.empty()) return std::nullopt;
  return elements;
}

/// Characters of name[at..] that `element` takes, 0 if it does not fit. A number is a whole run of digits.
size_t fit(const Element& element, std::string_view name, size_t at) {
  if (at >= name.size()) return 0;
  if (element.kind == Element::Kind::character) return name[at] == element.character ? 1 : 0;
  if (at > 0 && is_digit(name[at - 1])) return 0;
  std::string_view rest = name.substr(at);
  const auto number = take_number(rest);
  if (!number) return 0;
  const bool inside = std::any_of(element.ranges.begin(), element.ranges.end(), [&](const auto& range) {
    return *number >= range.first && *number <= range.second;
  });
  return inside ? name.size() - at - rest.size() : 0;
}

// Falls back to the last "*" only: what stands between two of them ends earliest where it begins earliest.
bool matches(const std::vector<Element>& pattern, std::string_view name) {
  size_t element = 0, at = 0, after_star = pattern.size() + 1, star_at = 0;
  while (at < name.size() || element < pattern.size()) {
    if (element < pattern.size() && pattern[element].kind == Element::Kind::any) {
      after_star = ++element;
      star_at = at;
      continue;
    }
    const size_t taken = element < pattern.size() ? fit(pattern[element], name, at) : 0;
    if (taken > 0) {
      ++element;
      at += taken;
      continue;
    }
    if (after_star > pattern.size() || star_at >= name.size()) return false;
    element = after_star;
    at = ++star_at;
  }
  return true;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// "blk.12.ffn_norm.weight" -> 12.
std::optional<uint32_t> layer_of(std::string_view tensor) {
  if (!tensor.starts_with("blk.")) return std::nullopt;
  tensor.remove_prefix(4);
  return take_number(tensor);
}

/// The last 6 of Flash's 43 layers, and as large a part of other models.
bool is_last_part(std::string_view tensor, uint32_t layers) {
  const auto layer = layer_of(tensor);
  return layer && *layer + (uint64_t{layers} * 6 + 42) / 43 >= layers;
}

TensorType expert_type(Preset preset, std::string_view tensor, TensorRole role, uint32_t layers) {
  const bool is_drafter = !tensor.starts_with("blk.");
  switch (preset) {
    case Preset::mxfp4:
      return TensorType::mxfp4;
    case Preset::q2_q4:
      if (is_last_part(tensor, layers)) return TensorType::q4_k;
      [[fallthrough]];
    case Preset::q2:
      // The drafter is small, and every wrong draft costs time.
      if (is_drafter) return TensorType::q4_k;
      return role == TensorRole::down_expert ? TensorType::q2_k : TensorType::iq2_xxs;
    case Preset::q4:
      return TensorType::q4_k;
    default:
      return TensorType::q8_0;
  }
}

TensorType preset_type(Preset preset, std::string_view tensor, TensorRole role, uint32_t layers) {
  const bool is_float = preset < Preset::q8;
  const TensorType float_type = preset == Preset::f32   ? TensorType::f32
                                : preset == Preset::f16 ? TensorType::f16
                                                        : TensorType::bf16;
  switch (role) {
    case TensorRole::table:
      return TensorType::i32;
    case TensorRole::vector:
      return TensorType::f32;
    case TensorRole::mixer:
      return is_float ? TensorType::f32 : TensorType::f16;
    case TensorRole::embedding:
    case TensorRole::small_matrix:
      return is_float ? float_type : TensorType::f16;
    case TensorRole::gate_up_expert:
    case TensorRole::down_expert:
      return is_float ? float_type : expert_type(preset, tensor, role, layers);
    default:
      return is_float ? float_type : TensorType::q8_0;
  }
}

}  // namespace

Result<bool> matches_pattern(std::string_view pattern, std::string_view name) {
  const auto elements = parse_pattern(pattern);
  if (!elements) return fail(ErrorCode::invalid_argument, "{} is no pattern of tensor names", quote(pattern));
  return matches(*elements, name);
}

Recipe::Recipe(Preset preset) : preset_(preset) {}

std::optional<Recipe> Recipe::named(std::string_view name) {
  const auto preset = preset_named(name);
  return preset ? std::optional<Recipe>(*preset) : std::nullopt;
}

Result<Recipe> Recipe::read(const std::string& path) {
  DS4_ASSIGN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > longest_file)
    return fail(ErrorCode::format, "{}: a recipe has at most {} bytes", path, longest_file);
  return parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Result<Recipe> Recipe::parse(std::string_view text, const std::string& path) {
  Recipe recipe;
  size_t line_number = 0;
  bool has_base = false;
  text = without_byte_order_mark(text);
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string place = fmt::format("{}:{}", path, line_number);
    const size_t blank = line.find_first_of(" \t");
    const std::string_view first = line.substr(0, blank);
    const std::string_view second =
        blank == std::string_view::npos ? std::string_view() : trimmed(line.substr(blank));
    if (second.empty() || second.find_first_of(" \t") != std::string_view::npos)
      return fail(ErrorCode::format, "{}: a line is \"base RECIPE\" or \"PATTERN FORMAT\"", place);
    if (first != "base") {
      DS4_TRY(recipe.add_rule(first, second, place, recipe.rules_.end()));
      continue;
    }
    const auto preset = preset_named(second);
    if (!preset) return fail(ErrorCode::format, "{}: there is no recipe {}", place, quote(second));
    if (has_base) return fail(ErrorCode::format, "{}: base was said before", place);
    has_base = true;
    recipe.preset_ = *preset;
  }
  return recipe;
}

Result<void> Recipe::add_rule(std::string_view pattern, std::string_view type, std::string place,
                              std::vector<Rule>::iterator position) {
  if (!parse_pattern(pattern))
    return fail(ErrorCode::format, "{}: {} is no pattern of tensor names", place, quote(pattern));
  const auto known = type_named(type);
  if (!known)
    return fail(ErrorCode::format,
                "{}: there is no format {}; known are f32, f16, bf16, q8_0, q4_k, q2_k, iq2_xxs and mxfp4",
                place, quote(type));
  rules_.insert(position, Rule{std::string(pattern), *known, std::move(place)});
  return {};
}

Result<void> Recipe::add_rule(std::string_view text) {
  const std::string place = fmt::format("--tensor-type {}", quote(text));
  const size_t equals = text.rfind('=');
  if (equals == std::string_view::npos)
    return fail(ErrorCode::invalid_argument, "{}: PATTERN=FORMAT is expected", place);
  DS4_TRY(add_rule(text.substr(0, equals), text.substr(equals + 1), place, rules_.begin() + option_rules_));
  ++option_rules_;
  return {};
}

std::string Recipe::name() const {
  std::string name(preset_name(preset_));
  if (rules_.size() == 1) name += " + 1 rule";
  if (rules_.size() > 1) name += fmt::format(" + {} rules", rules_.size());
  return name;
}

bool Recipe::applies(const Rule& rule, std::string_view tensor, TensorRole role) {
  if (role == TensorRole::table || role == TensorRole::vector) return false;
  if (role == TensorRole::mixer && rule.type != TensorType::f32 && rule.type != TensorType::f16 &&
      rule.type != TensorType::bf16)
    return false;
  return matches_pattern(rule.pattern, tensor).value_or(false);
}

TensorType Recipe::type_for(std::string_view tensor, TensorRole role, uint32_t layers) const {
  for (const Rule& rule : rules_) {
    if (applies(rule, tensor, role)) return rule.type;
  }
  return preset_type(preset_, tensor, role, layers);
}

Result<void> Recipe::check_rules(std::span<const model::TensorSlot> slots) const {
  for (const Rule& rule : rules_) {
    const bool used = std::any_of(slots.begin(), slots.end(), [&](const model::TensorSlot& slot) {
      return applies(rule, slot.name, slot.role);
    });
    if (!used)
      return fail(ErrorCode::invalid_argument, "{}: no tensor that {} fits can have the format {}",
                  rule.place, quote(rule.pattern), format::type_name(rule.type));
  }
  return {};
}

}  // namespace ds4::quantize
