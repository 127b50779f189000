// `ds4_test`: whether a model file still says what the hosted model said (docs/official-vectors.md).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/help_page.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/option_table.hpp"
#include "model_check.hpp"

namespace ds4::vectors {
namespace {

constexpr int exit_skipped = 77;  // what ctest and automake take for "not run"

/// What the original recorded its results with; prefill depends on it by rounding.
constexpr uint32_t chunk_tokens = 2048;

struct Options : cli::ProgramOptions {
  bool list = false;
  std::string folder = DS4_SOURCE_DIR "/tests/data/official-vectors";
  std::string case_id;  // empty: all
};
enum class Section { test, runtime };
using Row = cli::OptionRow<Options, Section>;

// clang-format off: a table reads best as one
constexpr auto own_rows = std::to_array<Row>({
    {Section::test, "", "--logprob-vectors", nullptr, "recorded tokens and log-probabilities against the model (the only test, and the default)",
     [](Options&, const std::string&) { return Result<void>(); }},
    {Section::test, "", "--all", nullptr, "every test",
     [](Options&, const std::string&) { return Result<void>(); }},
    {Section::test, "", "--list", nullptr, "the names of the tests and of the cases",
     [](Options& o, const std::string&) { o.list = true; return Result<void>(); }},
    {Section::test, "", "--vectors", "FOLDER", "holds official.vec, prompts/ and official/ [tests/data/official-vectors]",
     [](Options& o, const std::string& v) { return cli::set_path(o.folder, "--vectors", v); }},
    {Section::test, "", "--case", "ID", "only this case, also if it is usually skipped",
     [](Options& o, const std::string& v) { return cli::set_path(o.case_id, "--case", v); }},
});
// clang-format on
constexpr auto rows = cli::join_rows(own_rows, cli::program_rows<Options, Section>);

/// Why a case is not run unless it is asked for; empty for most.
std::string reason_to_skip(const std::string& id) {
  if (id != "long_memory_archive") return {};
  return "the hosted and the published model, which rounds index keys, disagree on it; --case runs it";
}

std::string help_page() {
  cli::HelpPage page(isatty(STDOUT_FILENO) == 1);
  page.line("usage: ds4_test [--logprob-vectors] -m FILE [OPTION...]");
  page.options("Tests", std::span<const Row>(rows), Section::test);
  page.options("Model and runtime", std::span<const Row>(rows), Section::runtime);
  page.title("Exit status");
  page.line("    0 passed, 1 failed, 2 wrong usage, 77 not run for lack of a model");
  return page.take();
}

int failure(const Error& error) {
  if (error.code == ErrorCode::cancelled) return cli::exit_interrupted;
  cli::say_error(error.message);
  return cli::exit_failure;
}

std::string summary(const Vector& vector, const CaseReport& report, double seconds) {
  std::string text =
      fmt::format("{}: {}, {} prompt tokens, {} of {} tokens as recorded, log-probabilities within {:.3f}",
                  vector.recorded.id, report.complaints.empty() ? "passed" : "FAILED", report.prompt_tokens,
                  report.equal_steps, report.steps, report.largest_difference);
  if (report.alternatives > 0) {
    text += fmt::format(", {} of {} alternatives among the likeliest {}", report.found_alternatives,
                        report.alternatives, local_top);
  }
  text += fmt::format(", {:.1f} s\n", seconds);
  for (const std::string& complaint : report.complaints) text += fmt::format("  {}\n", complaint);
  return text;
}

int run_cases(const Options& options, std::span<const Vector> vectors) {
  const auto engine = cli::open_engine(options, options.model_path);
  if (!engine) return failure(engine.error());
  cli::Writer output(STDOUT_FILENO);
  const TokensByBytes tokens(engine->tokenizer());
  SyncOptions sync;
  sync.cancelled = [] { return cli::interrupted(); };
  cli::set_interrupt_mode(cli::OnInterrupt::stop_then_exit);
  size_t passed = 0, failed = 0, skipped = 0;
  for (const Vector& vector : vectors) {
    const std::string reason = options.case_id.empty() ? reason_to_skip(vector.recorded.id) : "";
    if (!reason.empty()) {
      ++skipped;
      output.write(fmt::format("{}: skipped: {}\n", vector.recorded.id, reason));
      continue;
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto report = check_case(*engine, tokens, vector, sync);
    if (!report) return failure(report.error());
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    output.write(summary(vector, *report, elapsed.count()));
    ++(report->complaints.empty() ? passed : failed);
  }
  output.write(fmt::format("{} cases passed, {} failed, {} skipped\n", passed, failed, skipped));
  return failed > 0 || output.failed() ? cli::exit_failure : cli::exit_success;
}

int run(const Options& options) {
  auto vectors = read_vectors(options.folder);
  if (!vectors) return failure(vectors.error());
  if (options.list) {
    std::string text = "--logprob-vectors\n";
    for (const Vector& vector : *vectors) text += fmt::format("  {}\n", vector.recorded.id);
    cli::Writer(STDOUT_FILENO).write(text);
    return cli::exit_success;
  }
  if (!options.case_id.empty()) {
    std::erase_if(*vectors, [&](const Vector& v) { return v.recorded.id != options.case_id; });
    if (vectors->empty()) {
      cli::say_error(fmt::format("there is no case '{}' in {}", options.case_id, options.folder));
      return cli::exit_usage;
    }
  }
  if (options.model_path.empty() || !std::filesystem::exists(options.model_path)) {
    const std::string reason =
        options.model_path.empty()
            ? std::string("no model is named (-m FILE, or cmake -D DS4_FLASH_MODEL=FILE)")
            : fmt::format("there is no file {}", options.model_path);
    cli::Writer(STDOUT_FILENO).write(fmt::format("SKIPPED: {}\n", reason));
    return exit_skipped;
  }
  return run_cases(options, *vectors);
}

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4_test");
  cli::install_signal_handlers();
  Options options;
  options.prefill_chunk_tokens = chunk_tokens;
  if (const auto read = cli::read_arguments(std::span<const Row>(rows), arguments, options); !read) {
    cli::say_error(read.error().message);
    return cli::exit_usage;
  }
  if (options.help) {
    cli::Writer(STDOUT_FILENO).write(help_page());
    return cli::exit_success;
  }
  return run(options);
}

}  // namespace
}  // namespace ds4::vectors

int main(int argc, char** argv) {
  const std::span<const char* const> arguments(argv, static_cast<size_t>(argc));
  return ds4::vectors::run_program(arguments.empty() ? arguments : arguments.subspan(1));
}
