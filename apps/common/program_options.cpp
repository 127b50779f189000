#include "common/program_options.hpp"

#include <charconv>
#include <cmath>

namespace ds4::cli {
namespace {

template <class T>
Result<void> set_number_of_type(T& target, const char* name, const std::string& text, T minimum, T maximum) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < minimum ||
      value > maximum) {
    return fail(ErrorCode::invalid_argument, "{} needs a number from {} to {}, not '{}'", name, minimum,
                maximum, text);
  }
  target = value;
  return {};
}

}  // namespace

Result<uint64_t> parse_integer(const std::string& what, const std::string& text, uint64_t minimum,
                               uint64_t maximum) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < minimum || value > maximum) {
    return fail(ErrorCode::invalid_argument, "{} needs a whole number from {} to {}, not '{}'", what, minimum,
                maximum, text);
  }
  return value;
}

Result<void> set_number(float& target, const char* name, const std::string& text, float minimum,
                        float maximum) {
  return set_number_of_type(target, name, text, minimum, maximum);
}

Result<void> set_number(double& target, const char* name, const std::string& text, double minimum,
                        double maximum) {
  return set_number_of_type(target, name, text, minimum, maximum);
}

Result<SteeringScales> steering_scales(const ProgramOptions& o, Component made_from) {
  const bool given = o.steering_feed_forward.has_value() || o.steering_attention.has_value();
  SteeringScales scales{o.steering_attention.value_or(0), o.steering_feed_forward.value_or(0)};
  if (!o.steering_path.empty()) {
    if (!given) (made_from == Component::attention ? scales.attention : scales.feed_forward) = 1;
    return scales;
  }
  if (scales.attention == 0 && scales.feed_forward == 0) return scales;
  return fail(ErrorCode::invalid_argument, "{} needs a direction: name its file with --dir-steering-file",
              scales.feed_forward != 0 ? "--dir-steering-ffn" : "--dir-steering-attn");
}

Result<void> set_path(std::string& target, const char* name, const std::string& text) {
  if (text.empty()) return fail(ErrorCode::invalid_argument, "{} needs the name of a file", name);
  target = text;
  return {};
}

Result<void> set_backend(BackendChoice& backend, const std::string& name) {
  if (name == "auto") {
    backend = BackendChoice::automatic;
  } else if (name == "cpu") {
    backend = BackendChoice::cpu;
  } else if (name == "cuda") {
    backend = BackendChoice::cuda;
  } else {
    return fail(ErrorCode::invalid_argument, "there is no backend '{}'; there are: auto, cpu, cuda", name);
  }
  return {};
}

}  // namespace ds4::cli
