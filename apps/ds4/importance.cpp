#include "importance.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "common/calibration_set.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/progress.hpp"

namespace ds4::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Means of one kind of input, [experts][columns], in a layer.
struct LayerInputs {
  std::span<const double> sums;
  std::span<const uint64_t> tokens;
  size_t columns = 0;

  double average(size_t column) const {
    double sum = 0;
    for (size_t e = 0; e < tokens.size(); ++e) sum += sums[e * columns + column];
    const uint64_t count = std::accumulate(tokens.begin(), tokens.end(), uint64_t{0});
    return count == 0 ? 1.0 : sum / static_cast<double>(count);
  }
};

std::vector<float> means(const LayerInputs& inputs, uint64_t min_samples) {
  std::vector<float> values(inputs.sums.size());
  std::vector<double> average;
  for (size_t e = 0; e < inputs.tokens.size(); ++e) {
    const uint64_t count = inputs.tokens[e], missing = min_samples - std::min(min_samples, count);
    if (missing > 0 && average.empty()) {
      for (size_t i = 0; i < inputs.columns; ++i) average.push_back(inputs.average(i));
    }
    for (size_t i = 0; i < inputs.columns; ++i) {
      const size_t at = e * inputs.columns + i;
      const double filled = missing > 0 ? static_cast<double>(missing) * average[i] : 0.0;
      const double samples = static_cast<double>(count + missing);
      values[at] = samples == 0 ? 1.0f : static_cast<float>((inputs.sums[at] + filled) / samples);
    }
  }
  return values;
}

/// Tokens of the prompts, within the limits.
Result<std::vector<std::vector<Token>>> read_prompts(const Options& options, const std::string& dataset,
                                                     const Tokenizer& tokenizer, size_t longest) {
  std::vector<std::vector<Token>> prompts;
  size_t left = options.imatrix_max_tokens;
  bool has_special = false;
  for (const std::string_view text : calibration_prompts(dataset)) {
    if (left == 0 || prompts.size() == options.imatrix_max_prompts) break;
    std::vector<Token> tokens = tokenizer.encode_rendered(text);
    if (!options.raw_prompt) {
      std::vector<Token> plain = tokenizer.encode_plain(text);
      has_special = has_special || plain != tokens;
      tokens = std::move(plain);
    }
    tokens.resize(std::min({tokens.size(), longest, left}));
    left -= tokens.size();
    prompts.push_back(std::move(tokens));
  }
  if (prompts.empty())
    return fail(ErrorCode::invalid_argument, "{}: there is no prompt in it", options.imatrix_dataset_path);
  if (has_special) {
    warn(fmt::format("{} spells special tokens, which count as plain text; --raw-prompt makes them special",
                     options.imatrix_dataset_path));
  }
  return prompts;
}

/// A line on a terminal, else one now and then, with the time that is left.
class Progress {
 public:
  Progress(size_t prompts, size_t tokens) : prompts_(prompts), tokens_(tokens) {}

  void show(size_t prompts_done, size_t tokens_done, uint64_t routes) {
    const bool last = prompts_done == prompts_;
    const auto now = Clock::now();
    const double elapsed = std::chrono::duration<double>(now - begin_).count();
    std::string text = fmt::format("importance: {}/{} prompts, {}/{} tokens, {} routes", prompts_done,
                                   prompts_, tokens_done, tokens_, routes);
    if (elapsed > 1 && tokens_done > 0 && !last) {
      const double rate = static_cast<double>(tokens_done) / elapsed;
      const auto seconds = static_cast<long>(static_cast<double>(tokens_ - tokens_done) / rate);
      text += fmt::format(", {:.1f} t/s, {}:{:02}:{:02} left", rate, seconds / 3600, seconds / 60 % 60,
                          seconds % 60);
    }
    if (isatty(STDERR_FILENO) == 1) return line_.show(text, last);
    if (!last && now - shown_ < std::chrono::seconds(10)) return;
    shown_ = now;
    say(text);
  }

 private:
  size_t prompts_, tokens_;
  Clock::time_point begin_ = Clock::now(), shown_ = begin_;
  ProgressLine line_;
};

size_t total_tokens(const std::vector<std::vector<Token>>& prompts) {
  size_t count = 0;
  for (const auto& prompt : prompts) count += prompt.size();
  return count;
}

/// What is worth knowing about experts that were seen rarely.
void say_coverage(const ExpertInputSums& sums, uint64_t min_samples) {
  const auto count = [&](uint64_t limit) {
    return std::count_if(sums.tokens.begin(), sums.tokens.end(), [&](uint64_t n) { return n < limit; });
  };
  const auto fewest = std::min_element(sums.tokens.begin(), sums.tokens.end());
  std::string text =
      fmt::format("{} of {} experts were chosen, the rarest {} times",
                  static_cast<ptrdiff_t>(sums.tokens.size()) - count(1), sums.tokens.size(), *fewest);
  if (min_samples > 0)
    text += fmt::format("; {} fewer than {} times: filled up with their layer's average", count(min_samples),
                        min_samples);
  say(text);
}

Result<void> evaluate(const std::vector<std::vector<Token>>& prompts, const Engine& engine, Session& session,
                      ExpertInputs& inputs) {
  const size_t total = total_tokens(prompts);
  const uint64_t routes_per_token = uint64_t{engine.info().layers} * engine.info().experts_used;
  Progress progress(prompts.size(), total);
  size_t done = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SyncOptions sync;
    sync.expert_inputs = &inputs;
    sync.cancelled = [] { return interrupted(); };
    sync.on_progress = [&](size_t of_prompt, size_t) {
      progress.show(i, done + of_prompt, (done + of_prompt) * routes_per_token);
    };
    session.reset();
    if (const auto evaluated = session.sync(prompts[i], sync); !evaluated) {
      return fail(evaluated.error().code, "prompt {}: {}", i + 1, evaluated.error().message);
    }
    done += prompts[i].size();
  }
  progress.show(prompts.size(), done, done * routes_per_token);
  return {};
}

}  // namespace

Result<format::Imatrix> importance_from(const ExpertInputSums& sums, uint64_t min_samples) {
  format::Imatrix imatrix;
  for (size_t l = 0; l < sums.layers; ++l) {
    const auto tokens = std::span(sums.tokens).subspan(l * sums.experts, sums.experts);
    const auto of_layer = [&](const std::vector<double>& values, size_t columns) {
      return means(
          {std::span(values).subspan(l * sums.experts * columns, sums.experts * columns), tokens, columns},
          min_samples);
    };
    const auto name = [&](const char* matrix) { return fmt::format("blk.{}.ffn_{}_exps.weight", l, matrix); };
    std::vector<float> gate_up = of_layer(sums.gate_up, sums.width);
    imatrix.entries.emplace(name("gate"), gate_up);
    imatrix.entries.emplace(name("up"), std::move(gate_up));
    imatrix.entries.emplace(name("down"), of_layer(sums.down, sums.expert_width));
  }
  for (const auto& [name, values] : imatrix.entries) {
    if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) continue;
    return fail(ErrorCode::not_finite, "{}: an input of its experts was not a finite number", name);
  }
  return imatrix;
}

Result<std::string> collect_importance(const Options& options, const std::string& dataset,
                                       const Engine& engine) {
  DS4_ASSIGN(auto file, AtomicFile::create(options.imatrix_out_path));
  // A session has room for one token more than its longest prompt.
  DS4_ASSIGN(auto session,
             engine.create_session(std::min(options.context_tokens + 1, engine.info().max_context)));
  const size_t longest = std::min(options.context_tokens, session.context() - 1);
  DS4_ASSIGN(const auto prompts, read_prompts(options, dataset, engine.tokenizer(), longest));
  DS4_ASSIGN(auto inputs, engine.create_expert_inputs());
  prepare_session(session, engine, options);
  DS4_TRY(evaluate(prompts, engine, session, inputs));

  DS4_ASSIGN(const ExpertInputSums sums, inputs.sums());
  DS4_ASSIGN(format::Imatrix imatrix, importance_from(sums, options.imatrix_min_expert_samples));
  const uint64_t batches = uint64_t{prompts.size()} * sums.layers;
  imatrix.chunks = static_cast<uint32_t>(std::min<uint64_t>(batches, std::numeric_limits<int32_t>::max()));
  imatrix.dataset = options.imatrix_dataset_path;
  DS4_ASSIGN(const std::string bytes, format::serialize_imatrix(imatrix));
  DS4_TRY(file.write(bytes));
  DS4_TRY(file.commit());
  say_coverage(sums, options.imatrix_min_expert_samples);
  const uint64_t routes = std::accumulate(sums.tokens.begin(), sums.tokens.end(), uint64_t{0});
  return fmt::format("{}: {} prompts, {} tokens, {} observations of experts\n", options.imatrix_out_path,
                     prompts.size(), total_tokens(prompts), routes);
}

}  // namespace ds4::cli
