#include "program.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>

#include "base/error.hpp"
#include "baseline.hpp"
#include "common/console.hpp"
#include "common/ending.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "ds4/version.hpp"
#include "options.hpp"
#include "plain_display.hpp"
#include "prompt.hpp"
#include "regrade.hpp"
#include "runner.hpp"
#include "screen_display.hpp"
#include "self_check.hpp"
#include "suite.hpp"

namespace ds4::eval {
namespace {

using cli::print;
using cli::say;
using cli::Writer;
using Clock = std::chrono::steady_clock;

int failure(const Error& error) {
  const int status = cli::failure(error);
  return error.code == ErrorCode::invalid_argument ? cli::exit_usage : status;
}

int run_self_test() {
  const SelfCheck result = run_self_check();
  if (result.failures.empty())
    return print(fmt::format("ds4-eval: {} checks of extractors passed\n", result.cases));
  for (const std::string& failed : result.failures) cli::say_error(failed);
  return cli::exit_failure;
}

Result<std::vector<Item>> load_items(const Options& options) {
  return options.suite_path.empty() ? builtin_suite(options.suite) : load_suite_file(options.suite_path);
}

int list_cases(const std::vector<Item>& items) {
  std::string out = "#\tsource\tdomain\tid\tkind\ttitle\n";
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    out += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\n", i + 1, item.source, item.domain, item.id,
                       kind_name(item.kind), item.title);
  }
  return print(out);
}

int validate_cases(const std::vector<Item>& items) {
  const std::vector<std::string> complaints = check_items(items);
  for (const std::string& complaint : complaints) cli::say_error(complaint);
  if (!complaints.empty()) return cli::exit_failure;
  return print(fmt::format("ds4-eval: {} cases are valid\n", items.size()));
}

int regrade(const Options& options) {
  const auto trace = cli::read_file(options.regrade_path);
  if (!trace) {
    cli::say_error(trace.error().message);
    return cli::exit_usage;
  }
  Options all = options;
  all.suite = "all";
  const auto items = load_items(all);
  if (!items) return failure(items.error());
  const Regrade result =
      regrade_trace(*trace, [&](std::string_view source, std::string_view id) -> const Item* {
        const auto found = std::find_if(items->begin(), items->end(), [&](const Item& item) {
          return item.source == source && item.id == id;
        });
        return found == items->end() ? nullptr : &*found;
      });
  std::string out;
  for (const std::string& change : result.changes) out += change + "\n";
  if (!result.rows.empty()) out += format_report(result.rows, result.total);
  out += regrade_sentence(result, options.regrade_path) + "\n";
  const int printed = print(out);
  return result.cases == 0 || result.unknown > 0 || result.parse_errors > 0 ? cli::exit_failure : printed;
}

TraceHeader trace_header(const Options& options, const std::string& model_path, const Engine& engine,
                         const RunState& state, const ContextNeed& need) {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  return {{"started_unix", text(std::time(nullptr))},
          {"model", model_path},
          {"model_shape", engine.info().variant},
          {"backend", engine.info().backend},
          {"mtp_draft", text(cli::speculation_options(options).depth)},
          {"ctx", text(state.context_tokens)},
          {"max_tokens", text(options.max_tokens)},
          {"max_prompt_tokens", text(need.largest_prompt)},
          {"questions", text(state.cases.size())},
          {"temperature", text(options.sampling.temperature)},
          {"top_p", text(options.sampling.top_p)},
          {"min_p", text(options.sampling.min_p)},
          {"seed", text(options.seed)},
          {"think_mode_requested", text(think_name(options.think))},
          {"soft_limit_reply_budget", text(options.budget.soft_tokens)},
          {"hard_limit_reply_budget", text(options.budget.hard_tokens)},
          {"soft_limit_think_close_rank", text(options.budget.close_rank)}};
}

void say_context(const Options& options, const Engine& engine, const ContextNeed& need, uint64_t context) {
  say(cli::context_sentence(engine, context));
  say(fmt::format("the largest prompt has {} tokens (case {}), {} may be generated after it",
                  need.largest_prompt, need.case_number, need.budget));
  if (options.context_tokens == 0) return;
  if (options.think == ThinkMode::max && context < think_max_context_tokens) {
    cli::warn(fmt::format(
        "the longest reasoning effort is made for a context of {} tokens or more; this one has {}",
        think_max_context_tokens, context));
  }
  if (need.largest_prompt >= context) {
    cli::warn(fmt::format("it does not fit a context of {} tokens: its case will be skipped", context));
  } else if (context - need.largest_prompt < need.budget) {
    cli::warn(fmt::format("a context of {} tokens leaves {} for its answer", context,
                          context - need.largest_prompt));
  }
}

/// Runs the cases of `state` on the screen or as text, and writes the trace.
Result<void> run_cases(const Options& options, const Engine& engine, Session& session, RunState& state,
                       TraceFile* trace) {
  Writer output(STDOUT_FILENO);
  std::unique_ptr<Display> display;
  if (!options.plain) display = ScreenDisplay::open(options.pause_ms);
  if (!display) display = std::make_unique<PlainDisplay>(output);
  DS4_TRY(Runner(options, engine, session, state, *display, trace).run());
  if (trace == nullptr) return {};
  const Score score = score_of(state.rows());
  return trace->write(format_trace_summary(score.passed, score.failed, state.cases.size()));
}

int exit_code(const RunState& state, const std::vector<std::string>& differences, bool has_baseline) {
  if (cli::interrupted()) return cli::exit_interrupted;
  if (has_baseline) return differences.empty() ? cli::exit_success : cli::exit_failure;
  return score_of(state.rows()).failed > 0 ? cli::exit_failure : cli::exit_success;
}

Result<int> evaluate(const Options& options, const std::vector<Item>& items, const std::string& model_path) {
  const auto begin = Clock::now();
  std::string baseline;
  if (!options.baseline_path.empty()) {
    DS4_ASSIGN(baseline, cli::read_file(options.baseline_path));
  }
  DS4_ASSIGN(const Engine engine, cli::open_engine(options, model_path));
  DS4_ASSIGN(const ContextNeed need, context_need(options, items, engine.tokenizer()));
  RunState state;
  state.context_tokens = options.context_tokens > 0 ? options.context_tokens : need.tokens;
  state.hard_limit_tokens = options.budget.hard_tokens;
  for (const Item& item : items) state.cases.push_back({.item = item});
  DS4_ASSIGN(Session session, engine.create_session(state.context_tokens));
  cli::prepare_session(session, engine, options);
  say_context(options, engine, need, state.context_tokens);
  std::optional<TraceFile> trace;
  if (!options.trace_path.empty()) {
    DS4_ASSIGN(auto file, TraceFile::create(options.trace_path));
    trace.emplace(std::move(file));
    DS4_TRY(trace->write(format_trace_header(trace_header(options, model_path, engine, state, need))));
  }
  cli::set_interrupt_mode(cli::OnInterrupt::stop_then_exit);
  auto run = run_cases(options, engine, session, state, trace ? &*trace : nullptr);
  const SpeculationStats& drafts = session.speculation();
  if (drafts.draft_steps > 0) say(cli::drafts_text(drafts));
  if (!drafts.failure.empty()) cli::warn(drafts.failure + "; it was not used any more");
  const int printed = print("\n" + format_report(state.rows(), state.cases.size()));
  const std::chrono::duration<double> wall = Clock::now() - begin;
  say(fmt::format("wall time {:.1f} s, loading the model included", wall.count()));
  if (!run) return std::move(run).error();
  std::vector<std::string> differences;
  if (!options.baseline_path.empty()) {
    differences = compare_with_baseline(state.cases, baseline);
    for (const std::string& difference : differences) cli::say_error(difference);
    if (differences.empty()) say(fmt::format("the same as {}", options.baseline_path));
  }
  const int code = exit_code(state, differences, !options.baseline_path.empty());
  return code == cli::exit_success ? printed : code;
}

int run_with_options(Options options) {
  if (options.self_test) return run_self_test();
  if (!options.regrade_path.empty()) return regrade(options);
  const auto items = load_items(options);
  if (!items) return failure(items.error());
  const auto selected = select_cases(options, *items);
  if (!selected) return failure(selected.error());
  if (options.list_cases) return list_cases(*selected);
  if (options.validate_cases) return validate_cases(*selected);
  if (options.seed == 0) {
    const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    options.seed = now ^ (static_cast<uint64_t>(::getpid()) << 32);
  }
  const auto model = cli::find_model(options.model_path);
  if (!model) return cli::say_error(model.error().message), cli::exit_failure;
  if (model->bundled) {
    say(fmt::format("using the small bundled model {}; name another one with -m", model->path));
    if (options.suite == "core" && options.suite_path.empty()) {
      cli::warn("that model knows none of these questions; --suite nano has some for it");
    }
  }
  const auto code = evaluate(options, *selected, model->path);
  return code ? *code : failure(code.error());
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4-eval");
  cli::install_signal_handlers();
  const auto options = parse_options(arguments);
  if (!options) {
    cli::say_error(options.error().message);
    if (options.error().code != ErrorCode::unsupported) Writer(STDERR_FILENO).write(short_help());
    return cli::exit_usage;
  }
  if (options->help) return print(help_page(options->help_topic, isatty(STDOUT_FILENO) == 1));
  if (options->version) return print(fmt::format("ds4-eval {}\n", version));
  return run_with_options(*options);
}

}  // namespace ds4::eval
