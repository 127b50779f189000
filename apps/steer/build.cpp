#include "build.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "result_files.hpp"

namespace ds4::steer {
namespace {

using Row = std::span<double>;

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

void normalize(Row v) {
  const double norm = std::sqrt(dot(v, v));
  if (norm == 0) return;
  for (double& x : v) x /= norm;
}

// What the part of every layer computed for the averaged tokens of a prompt: [layers][width].
Result<std::vector<float>> capture_mean(const Options& options, const Engine& engine, Session& session,
                                        const Prompt& prompt) {
  const RenderedTokens rendered = render(engine.tokenizer(), options.system, prompt.text, options.think);
  const size_t message = rendered.tokens.size() - rendered.message_begin;
  const size_t rows =
      options.positions.all ? message : std::min(options.positions.last, rendered.tokens.size());
  auto captured = session.capture(rendered.tokens, options.component, rows);
  if (!captured) {
    return fail(captured.error().code, "prompt \"{}\": {}", prompt.text.substr(0, 60),
                captured.error().message);
  }
  const size_t width = engine.info().width;
  std::vector<float> mean(size_t{engine.info().layers} * width);
  for (size_t l = 0; l < engine.info().layers; ++l) {
    for (size_t i = 0; i < width; ++i) {
      double sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += (*captured)[(l * rows + r) * width + i];
      mean[l * width + i] = static_cast<float>(sum / static_cast<double>(rows));
    }
  }
  return mean;
}

std::string positions_text(const Positions& positions) {
  if (positions.all) return "all";
  return positions.last == 1 ? "last" : fmt::format("last {}", positions.last);
}

}  // namespace

DirectionSums::DirectionSums(size_t layers, size_t width)
    : layers_(layers),
      width_(width),
      good_(layers * width),
      bad_(layers * width),
      differences_(layers * width) {}

void DirectionSums::add(std::span<const float> good, std::span<const float> bad) {
  ++pairs_;
  std::vector<double> difference(width_);
  for (size_t l = 0; l < layers_; ++l) {
    for (size_t i = 0; i < width_; ++i) {
      const size_t at = l * width_ + i;
      good_[at] += good[at];
      bad_[at] += bad[at];
      difference[i] = double{good[at]} - bad[at];
    }
    normalize(difference);
    for (size_t i = 0; i < width_; ++i) differences_[l * width_ + i] += difference[i];
  }
}

std::vector<float> DirectionSums::directions(bool pair_normalize, bool orthogonalize) const {
  std::vector<float> result(layers_ * width_);
  std::vector<double> direction(width_), base(width_);
  for (size_t l = 0; l < layers_; ++l) {
    for (size_t i = 0; i < width_; ++i) {
      const size_t at = l * width_ + i;
      direction[i] = pair_normalize ? differences_[at] : good_[at] - bad_[at];
      base[i] = bad_[at];
    }
    normalize(direction);
    if (orthogonalize) {
      normalize(base);
      const double along = dot(direction, base);
      for (size_t i = 0; i < width_; ++i) direction[i] -= along * base[i];
      normalize(direction);
    }
    std::copy(direction.begin(), direction.end(), result.begin() + static_cast<ptrdiff_t>(l * width_));
  }
  return result;
}

Result<void> build_directions(const Options& options, const std::string& model_path, const Engine& engine,
                              const std::vector<Prompt>& good, const std::vector<Prompt>& bad,
                              const std::function<void(size_t, size_t)>& progress) {
  const size_t layers = engine.info().layers, width = engine.info().width;
  const size_t last_layer = options.last_layer.value_or(layers - 1);
  if (last_layer >= layers || options.first_layer >= layers) {
    return fail(ErrorCode::invalid_argument, "--layers {}-{}: the model's layers are 0 to {}",
                options.first_layer, last_layer, layers - 1);
  }
  DS4_TRY(check_writable({options.out + ".f32", options.out + ".json"}));
  DS4_ASSIGN(auto session, engine.create_session(options.context_tokens));
  DirectionSums sums(layers, width);
  const size_t pairs = std::min(good.size(), bad.size());
  for (size_t i = 0; i < pairs; ++i) {
    if (cli::interrupted()) return fail(ErrorCode::cancelled, "interrupted");
    DS4_ASSIGN(const auto towards, capture_mean(options, engine, session, good[i]));
    DS4_ASSIGN(const auto away, capture_mean(options, engine, session, bad[i]));
    sums.add(towards, away);
    progress(i + 1, pairs);
  }

  SteeringDirections directions;
  directions.layers = static_cast<uint32_t>(layers);
  directions.width = static_cast<uint32_t>(width);
  directions.values = sums.directions(options.pair_normalize, options.orthogonalize);
  for (size_t l = 0; l < layers; ++l) {
    if (l >= options.first_layer && l <= last_layer) continue;
    std::fill_n(directions.values.begin() + static_cast<ptrdiff_t>(l * width), width, 0.0f);
  }
  std::error_code ignored;
  directions.model = std::filesystem::absolute(model_path, ignored).string();
  directions.model_name = engine.info().name;
  directions.component = options.component;
  directions.thinking = options.think != ThinkMode::none;
  directions.pair_normalize = options.pair_normalize;
  directions.orthogonalize = options.orthogonalize;
  directions.positions = positions_text(options.positions);
  directions.first_layer = static_cast<uint32_t>(options.first_layer);
  directions.last_layer = static_cast<uint32_t>(last_layer);
  directions.system = options.system;
  directions.good_file = options.good_path;
  directions.bad_file = options.bad_path;
  directions.prompts_hash = prompts_hash(good, bad);
  directions.note =
      "good minus bad: a negative scale strengthens what a text has of it, 1 removes it, 2 turns it round";
  const std::string json = steering_json(directions);
  const std::string_view values(reinterpret_cast<const char*>(directions.values.data()),
                                directions.values.size() * sizeof(float));
  return write_result({{options.out + ".f32", values}, {options.out + ".json", json}});
}

}  // namespace ds4::steer
