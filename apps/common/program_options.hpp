// What every program with a model is asked for, and the values of options.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "ds4/engine.hpp"
#include "ds4/error.hpp"

namespace ds4::cli {

struct ProgramOptions {
  bool help = false;
  std::string help_topic;  // empty: the default page
  bool version = false;

  std::string model_path;  // empty: search
  BackendChoice backend = BackendChoice::automatic;
  unsigned threads = 0;  // 0: one per processor
  uint32_t prefill_chunk_tokens = 4096;
  bool exact_activations = false;
  bool warm_weights = false;

  std::string mtp_path;             // file with a drafter; empty: none, or the one in the model file
  std::optional<size_t> mtp_depth;  // drafts at a time
  float mtp_margin = 3.0f;

  std::string steering_path;  // directions; empty: none
  std::optional<float> steering_feed_forward, steering_attention;
};

/// Scales as asked for; a file without scales steers the parts that it was made from by 1. invalid_argument
/// for a scale without a file.
Result<SteeringScales> steering_scales(const ProgramOptions& options,
                                       Component made_from = Component::feed_forward);

/// Drafts at a time when a drafter is named and nothing else is said.
inline constexpr size_t default_draft_depth = 4;

inline constexpr uint64_t largest_integer = 2147483647;

/// A whole decimal number without sign in [minimum, maximum]; `what` begins the error sentence.
Result<uint64_t> parse_integer(const std::string& what, const std::string& text, uint64_t minimum,
                               uint64_t maximum);

template <class T>
Result<void> set_integer(T& target, const char* name, const std::string& text, uint64_t minimum = 1,
                         uint64_t maximum = largest_integer) {
  DS4_ASSIGN(const uint64_t value, parse_integer(name, text, minimum, maximum));
  target = static_cast<T>(value);
  return {};
}

/// A finite decimal number in [minimum, maximum].
Result<void> set_number(float& target, const char* name, const std::string& text, float minimum,
                        float maximum);
Result<void> set_number(double& target, const char* name, const std::string& text, double minimum,
                        double maximum);
/// Any name but the empty one.
Result<void> set_path(std::string& target, const char* name, const std::string& text);
Result<void> set_backend(BackendChoice& backend, const std::string& name);

}  // namespace ds4::cli
