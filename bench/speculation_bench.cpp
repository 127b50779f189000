// What drafts cost and what they give, through Session::generate(): a plain step, checking 2 to 6 rows, one
// draft; then the speed at a chosen share of right drafts and number of drafts, beside the formula
//   tokens per second = (1 + p + ... + p^d) / (check(d + 1) + d draft)
// and the speed where the session chooses the number itself. The drafter's tokens are replaced by those of
// the text, of which a chosen share is made wrong, so that the weights need not mean anything. Usage:
// ds4_speculation_bench [--json] [--cpu] MODEL MTP [CONTEXT [TOKENS]]; an MTP file that does not exist is
// written, with random weights that fit the model. Computes on a GPU if there is one.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ds4/sampling.hpp"
#include "engine/engine_impl.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"
#include "support/oracle_backend.hpp"
#include "support/tiny_model.hpp"

namespace ds4::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Ends the program with the error's sentence.
template <class T>
T must(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "ds4_speculation_bench: %s\n", result.error().message.c_str());
  std::exit(1);
}
void must(const Result<void>& result) {
  if (result) return;
  std::fprintf(stderr, "ds4_speculation_bench: %s\n", result.error().message.c_str());
  std::exit(1);
}

struct Plan {
  bool json = false;
  EngineOptions engine;
  size_t context = 2048;  // tokens of the prompt
  size_t tokens = 200;    // generated for each point
};

// Not measured: the tokens before these. The first of a run may prepare what later ones use, and a session
// that chooses the number of drafts learns.
constexpr size_t warm_up_tokens = 24, learning_tokens = 100, deepest = 5;

/// 4-bit experts and 8-bit projections, as in published files.
void write_drafter(const Plan& plan) {
  testing::TinyModelOptions options;
  const auto file = must(format::GgufFile::open(plan.engine.model_path));
  options.shape = must(model::read_shape(file, nullptr));
  options.use_published_types(format::TensorType::q4_k, format::TensorType::q4_k);
  const auto begin = Clock::now();
  must(testing::write_tiny_mtp(plan.engine.mtp_path, options));
  std::fprintf(stderr, "%s: %.2f GiB of random weights, %.1f s\n", plan.engine.mtp_path.c_str(),
               static_cast<double>(std::filesystem::file_size(plan.engine.mtp_path)) / (1u << 30),
               seconds_since(begin));
}

struct Run {
  double seconds = 0;
  double median_step = 0;  // seconds
  SpeculationStats stats;
};

class Bench {
 public:
  Bench(const Plan& plan, const SamplingParams& sampling) : plan_(plan), sampling_(sampling) {
    const auto begin = Clock::now();
    engine_ = std::make_unique<Engine>(must(EngineAccess::open(plan.engine, [&](auto backend) {
      return std::make_unique<testing::OracleBackend>(std::move(backend), oracle_);
    })));
    oracle_.vocabulary = engine_->info().vocabulary;
    std::fprintf(stderr, "opened in %.1f s\n", seconds_since(begin));
  }

  const ModelInfo& info() const { return engine_->info(); }
  void choose(const SamplingParams& sampling) { sampling_ = sampling; }

  /// The prompt, and the text that plain decoding gives after it.
  void learn_text() {
    if (!session_) {
      session_.emplace(must(engine_->create_session(plan_.context + total() + 16)));
      std::vector<Token> prompt(plan_.context);
      for (size_t i = 0; i < prompt.size(); ++i) {
        prompt[i] = static_cast<Token>((i * 7919 + i * i % 101) % oracle_.vocabulary);
      }
      must(session_->sync(prompt));
      start_ = must(session_->snapshot());
    }
    generate({}, 0, total());
    oracle_.text.assign(session_->tokens().begin(), session_->tokens().end());
  }
  size_t text_tokens() const { return oracle_.text.size() - plan_.context; }
  size_t different_tokens() const {
    return std::set<Token>(oracle_.text.begin() + static_cast<ptrdiff_t>(plan_.context), oracle_.text.end())
        .size();
  }

  Run run(const SpeculationOptions& options, double right, bool drafter) {
    oracle_.right = right;
    oracle_.run_drafter = drafter;
    const size_t unmeasured = options.adaptive ? learning_tokens : warm_up_tokens;
    return generate(options, unmeasured, unmeasured + plan_.tokens);
  }

 private:
  size_t total() const { return learning_tokens + plan_.tokens + deepest; }

  // Of `count` tokens, those behind the first `unmeasured` are measured.
  Run generate(const SpeculationOptions& options, size_t unmeasured, size_t count) {
    must(session_->restore(*start_));
    session_->set_speculation(options);
    Rng rng(1);
    Run result;
    std::vector<double> steps;
    size_t done = 0, measured = 0;
    SpeculationStats before;
    while (done < count) {
      if (done >= unmeasured && measured == 0) before = session_->speculation();
      const auto begin = Clock::now();
      const size_t got = must(session_->generate(sampling_, rng, count - done)).size();
      const double seconds = seconds_since(begin);
      if (done >= unmeasured) {
        steps.push_back(seconds);
        result.seconds += seconds;
        measured += got;
      }
      done += got;
    }
    std::nth_element(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2), steps.end());
    result.median_step = steps[steps.size() / 2];
    result.seconds /= static_cast<double>(measured);
    SpeculationStats stats = session_->speculation();
    if (!stats.failure.empty()) must(Result<void>(Error{ErrorCode::not_finite, stats.failure}));
    stats.draft_steps -= before.draft_steps;
    stats.draft_tokens -= before.draft_tokens;
    for (size_t i = 0; i < max_draft_depth; ++i) {
      stats.drafted[i] -= before.drafted[i];
      stats.accepted[i] -= before.accepted[i];
    }
    result.stats = stats;
    return result;
  }

  const Plan& plan_;
  SamplingParams sampling_;
  testing::Oracle oracle_;
  std::unique_ptr<Engine> engine_;
  std::optional<Session> session_;
  std::optional<Snapshot> start_;
};

class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}

  void cost(const std::string& name, double seconds, double plain) const {
    std::printf(json_ ? "{\"name\":\"%s\",\"us\":%.1f,\"plain_steps\":%.3f}\n"
                      : "%-44s %10.0f us, %.3f plain steps\n",
                name.c_str(), seconds * 1e6, seconds / plain);
    std::fflush(stdout);
  }
  /// Without a formula for a session that chooses the number of drafts.
  void speed(const std::string& name, const Run& run, double plain, const std::optional<double>& formula,
             double expected_tokens) const {
    const auto drafts = static_cast<unsigned long long>(run.stats.drafted[0]);
    const auto right = static_cast<unsigned long long>(run.stats.accepted[0]);
    const double rate = 1 / run.seconds, of_plain = plain / run.seconds, step = run.stats.tokens_per_step();
    std::printf(
        json_ ? "{\"name\":\"%s\",\"tokens_per_s\":%.2f,\"of_plain\":%.3f,\"tokens_per_draft_step\":%.3f,"
                "\"first_drafts\":%llu,\"first_right\":%llu"
              : "%-44s %8.2f tokens/s, %.3f of plain; %.2f tokens per draft step, first drafts %llu, "
                "right %llu",
        name.c_str(), rate, of_plain, step, drafts, right);
    if (formula) {
      std::printf(json_ ? ",\"formula\":%.3f,\"formula_tokens\":%.3f" : "; formula %.3f with %.2f tokens",
                  *formula, expected_tokens);
    }
    std::printf(json_ ? "}\n" : "\n");
    std::fflush(stdout);
  }

 private:
  bool json_;
};

std::string percent(double share) {
  return std::to_string(static_cast<int>(share * 100 + 0.5)) + "% right";
}
std::string counted(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

void measure(const Printer& print, Bench& bench, const std::string& mode) {
  bench.learn_text();
  std::fprintf(stderr, "%s text: %zu different tokens of %zu\n", mode.c_str(), bench.different_tokens(),
               bench.text_tokens());
  const Run plain_run = bench.run({.adaptive = false}, 0, false);
  const double plain = plain_run.median_step;
  print.cost(mode + ", plain step", plain, plain);
  std::vector<double> check{plain}, drafting{0};  // by drafts
  double draft = 0;
  for (size_t depth = 1; depth <= deepest; ++depth) {
    const SpeculationOptions forced{.depth = depth, .min_margin = 0, .adaptive = false};
    check.push_back(bench.run(forced, 1, false).median_step);
    print.cost(mode + ", check of " + counted(depth + 1, "row"), check.back(), plain);
    if (depth > 3) continue;
    draft = (bench.run(forced, 1, true).median_step - check.back()) / static_cast<double>(depth);
    print.cost(mode + ", one of " + counted(depth, "draft"), draft, plain);
    drafting.push_back(draft * static_cast<double>(depth));
  }
  for (size_t depth = 1; depth <= 3; ++depth) {
    for (const double right : {0.5, 0.8, 1.0}) {
      double tokens = 1, chance = 1;
      for (size_t i = 0; i < depth; ++i) tokens += chance *= right;
      const double formula = tokens * plain / (check[depth] + drafting[depth]);
      const Run run = bench.run({.depth = depth, .min_margin = 0, .adaptive = false}, right, true);
      print.speed(mode + ", " + percent(right) + ", " + counted(depth, "draft"), run, plain_run.seconds,
                  formula, tokens);
    }
  }
  for (const double right : {0.0, 0.5, 0.8, 1.0}) {
    const Run run = bench.run({.depth = 4, .min_margin = 0}, right, true);
    print.speed(mode + ", " + percent(right) + ", adaptive up to 4", run, plain_run.seconds, std::nullopt, 0);
  }
}

std::optional<size_t> number(const std::string& text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > 1000000)
    return std::nullopt;
  return value;
}

std::optional<Plan> read_plan(int argc, char** argv) {
  Plan plan;
  std::vector<std::string> rest;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json") {
      plan.json = true;
    } else if (argument == "--cpu") {
      plan.engine.backend = BackendChoice::cpu;
    } else if (argument.starts_with('-')) {
      return std::nullopt;
    } else {
      rest.push_back(argument);
    }
  }
  if (rest.size() < 2 || rest.size() > 4) return std::nullopt;
  plan.engine.model_path = rest[0];
  plan.engine.mtp_path = rest[1];
  for (size_t i = 2; i < rest.size(); ++i) {
    const auto value = number(rest[i]);
    if (!value) return std::nullopt;
    (i == 2 ? plan.context : plan.tokens) = *value;
  }
  return plan;
}

int run(int argc, char** argv) {
  const auto plan = read_plan(argc, argv);
  if (!plan) {
    std::fprintf(stderr, "usage: ds4_speculation_bench [--json] [--cpu] MODEL MTP [CONTEXT [TOKENS]]\n");
    return 2;
  }
  if (!std::filesystem::exists(plan->engine.mtp_path)) write_drafter(*plan);
  Bench bench(*plan, {});
  std::printf(
      plan->json
          ? "{\"bench\":\"speculation\",\"device\":\"%s\",\"model\":\"%s\",\"context\":%zu,\"tokens\":%zu}\n"
          : "speculation on %s, %s, after %zu tokens, %zu tokens a point\n",
      bench.info().backend.c_str(), bench.info().name.c_str(), plan->context, plan->tokens);
  const Printer print(plan->json);
  // Random weights may repeat themselves where the likeliest token is taken, and rows that are alike share
  // experts; sampled text does not.
  bench.choose({.temperature = 0});
  measure(print, bench, "greedy");
  bench.choose({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0});
  measure(print, bench, "sampled");
  return 0;
}

}  // namespace
}  // namespace ds4::bench

int main(int argc, char** argv) {
  return ds4::bench::run(argc, argv);
}
