#include "ds4/steering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>

#include <boost/json.hpp>

#include "base/error.hpp"

namespace ds4 {
namespace {

namespace json = boost::json;

constexpr const char* format_name = "ds4-directional-steering-v1";
constexpr uintmax_t max_json_bytes = 1 << 20;

static_assert(std::endian::native == std::endian::little);

std::string quoted(const std::string& text) {
  return json::serialize(json::string(text));
}

std::string json_path(const std::string& path) {
  return std::filesystem::path(path).replace_extension(".json").string();
}

std::string text_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

bool flag_of(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_bool() && value->get_bool();
}

std::pair<uint32_t, uint32_t> layers_of(const json::object& object) {
  const json::value* value = object.if_contains("layers");
  if (value == nullptr || !value->is_array() || value->get_array().size() != 2) return {};
  const auto number = [&](size_t i) {
    const json::value& element = value->get_array()[i];
    json::error_code error;
    const auto result = element.to_number<uint32_t>(error);
    return error ? 0 : result;
  };
  return {number(0), number(1)};
}

// What the file beside the directions tells. Only a contradiction to the model is an error.
Result<void> read_description(const std::string& path, SteeringDirections& directions) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  if (std::filesystem::file_size(path, ignored) > max_json_bytes) {
    return fail(ErrorCode::format, "{}: too large to describe steering directions", path);
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  json::error_code error;
  const json::value document = json::parse(text, error);
  if (error || !document.is_object() || text_of(document.get_object(), "format") != format_name) {
    return fail(ErrorCode::format, "{}: not a description of steering directions ({})", path, format_name);
  }
  const json::object& object = document.get_object();
  if (const json::value* shape = object.if_contains("shape"); shape != nullptr) {
    const bool same = *shape == json::value{directions.layers, directions.width};
    if (!same) {
      return fail(ErrorCode::format,
                  "{}: made for a model of shape {}, but this one has {} layers of width {}", path,
                  json::serialize(*shape), directions.layers, directions.width);
    }
  }
  directions.component =
      text_of(object, "component") == "attn_out" ? Component::attention : Component::feed_forward;
  directions.thinking = flag_of(object, "thinking");
  directions.pair_normalize = flag_of(object, "pair_normalize");
  directions.orthogonalize = flag_of(object, "orthogonalize_control_mean");
  directions.good_file = text_of(object, "good_file");
  directions.bad_file = text_of(object, "bad_file");
  directions.model = text_of(object, "model");
  directions.model_name = text_of(object, "model_name");
  directions.positions = text_of(object, "positions");
  std::tie(directions.first_layer, directions.last_layer) = layers_of(object);
  directions.system = text_of(object, "system");
  directions.prompts_hash = text_of(object, "prompts_xxh3_128");
  directions.note = text_of(object, "note");
  return {};
}

}  // namespace

std::string steering_json(const SteeringDirections& d) {
  return fmt::format(
      "{{\n  \"format\": \"{}\",\n  \"shape\": [{}, {}],\n  \"component\": \"{}\",\n  \"thinking\": {},\n"
      "  \"pair_normalize\": {},\n  \"orthogonalize_control_mean\": {},\n  \"good_file\": {},\n  "
      "\"bad_file\": {},\n"
      "  \"model\": {},\n  \"model_name\": {},\n  \"positions\": {},\n  \"layers\": [{}, {}],\n  "
      "\"system\": {},\n  \"prompts_xxh3_128\": {},\n  \"note\": {}\n}}\n",
      format_name, d.layers, d.width, d.component == Component::attention ? "attn_out" : "ffn_out",
      d.thinking, d.pair_normalize, d.orthogonalize, quoted(d.good_file), quoted(d.bad_file), quoted(d.model),
      quoted(d.model_name), quoted(d.positions), d.first_layer, d.last_layer, quoted(d.system),
      quoted(d.prompts_hash), quoted(d.note));
}

Result<SteeringDirections> read_directions(const std::string& path, uint32_t layers, uint32_t width) {
  const uint64_t expected = uint64_t{layers} * width * sizeof(float);
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return fail(ErrorCode::not_found, "{}: {}", path, error.message());
  if (bytes != expected) {
    return fail(ErrorCode::format,
                "{}: {} bytes, but the directions of a model with {} layers of width {} take {}", path, bytes,
                layers, width, expected);
  }
  SteeringDirections directions;
  directions.layers = layers;
  directions.width = width;
  directions.values.resize(uint64_t{layers} * width);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(directions.values.data()), static_cast<std::streamsize>(expected));
  if (!file) return fail(ErrorCode::io, "{}: cannot be read", path);
  const auto bad = std::find_if_not(directions.values.begin(), directions.values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != directions.values.end()) {
    return fail(ErrorCode::format, "{}: the direction of layer {} holds a value that is not finite", path,
                (bad - directions.values.begin()) / width);
  }
  DS4_TRY(read_description(json_path(path), directions));
  return directions;
}

}  // namespace ds4
