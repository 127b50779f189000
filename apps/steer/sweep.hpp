// Answers at several scales of a direction.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "options.hpp"
#include "prompts.hpp"

namespace ds4::steer {

/// What the answers at one scale have in common.
struct ScaleRow {
  float scale = 0;
  double words = 0, tokens = 0;  // mean length of an answer
  double projection = 0;  // mean of d . y after the edit, over layers with a direction, at the last token
  size_t asked = 0, right = 0;  // prompts with an expected text, and answers that contain it
  size_t cut = 0;               // answers that did not end by themselves
};

struct SweepOutput {
  std::function<void(float scale, const Prompt& prompt, const std::string& answer)> on_answer;
  std::function<void(size_t done, size_t total)> on_progress;
};

/// One greedy answer to every prompt at every scale. cancelled after Ctrl+C.
Result<std::vector<ScaleRow>> run_sweep(const Options& options, const Engine& engine,
                                        const SteeringDirections& directions,
                                        const std::vector<Prompt>& prompts, const SweepOutput& output);

/// Columns of equal width, with a heading.
std::string sweep_table(const std::vector<ScaleRow>& rows, size_t prompts);
/// scale,words,tokens,projection,asked,right,cut
std::string sweep_csv(const std::vector<ScaleRow>& rows);
/// Panels for length, projection and, if anything was asked, the share of right answers, over the scale.
std::string sweep_chart(const std::vector<ScaleRow>& rows, const std::string& title);

}  // namespace ds4::steer
