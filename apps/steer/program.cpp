#include "program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.hpp"
#include "build.hpp"
#include "common/console.hpp"
#include "common/ending.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "common/progress.hpp"
#include "common/visible_text.hpp"
#include "ds4/version.hpp"
#include "options.hpp"
#include "result_files.hpp"
#include "sweep.hpp"

namespace ds4::steer {
namespace {

using cli::failure;
using cli::print;
using cli::say;
using cli::Writer;

Result<void> build(const Options& options, const std::string& model_path) {
  DS4_ASSIGN(const auto good, read_prompts(options.good_path));
  DS4_ASSIGN(const auto bad, read_prompts(options.bad_path));
  if (good.size() != bad.size()) {
    cli::warn(fmt::format("{} prompts in {} and {} in {}: the first {} of both are pairs", good.size(),
                          options.good_path, bad.size(), options.bad_path,
                          std::min(good.size(), bad.size())));
  }
  DS4_ASSIGN(const Engine engine, cli::open_engine(options, model_path));
  {
    cli::ProgressLine line;
    DS4_TRY(build_directions(options, model_path, engine, good, bad, [&](size_t done, size_t total) {
      line.show(fmt::format("pair {}/{}", done, total), done == total);
    }));
  }
  say(fmt::format("{} pairs; wrote {}.f32 and {}.json", std::min(good.size(), bad.size()), options.out,
                  options.out));
  return {};
}

Result<void> sweep(const Options& options, const std::string& model_path) {
  DS4_ASSIGN(const auto prompts, read_prompts(options.prompts_path));
  DS4_ASSIGN(const Engine engine, cli::open_engine(options, model_path));
  DS4_ASSIGN(const auto directions,
             read_directions(options.direction_path, engine.info().layers, engine.info().width));
  if (!options.out.empty()) DS4_TRY(check_writable({options.out + ".csv", options.out + ".svg"}));
  Writer output(STDOUT_FILENO);
  cli::ProgressLine line;
  SweepOutput handlers;
  if (options.show) {
    handlers.on_answer = [&](float scale, const Prompt& prompt, const std::string& text) {
      const std::string shown = output.terminal() ? cli::visible(text, "\n\t") : text;
      output.write(fmt::format("--- scale {}: {}\n{}\n", scale, prompt.text, shown));
    };
  } else {
    handlers.on_progress = [&](size_t done, size_t total) {
      line.show(fmt::format("answer {}/{}", done, total), done == total);
    };
  }
  DS4_ASSIGN(const auto rows, run_sweep(options, engine, directions, prompts, handlers));
  if (!options.out.empty()) {
    const std::string stem = std::filesystem::path(options.direction_path).stem().string();
    const std::string csv = sweep_csv(rows);
    const std::string chart = sweep_chart(rows, fmt::format("{} on {}", stem, engine.info().variant));
    DS4_TRY(write_result({{options.out + ".csv", csv}, {options.out + ".svg", chart}}));
  }
  if (!output.write(sweep_table(rows, prompts.size()))) return output.error("standard output");
  return {};
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4-steer");
  cli::install_signal_handlers();
  const auto options = parse_options(arguments);
  if (!options) {
    cli::say_error(options.error().message);
    Writer(STDERR_FILENO).write(short_help());
    return cli::exit_usage;
  }
  if (options->help) return print(help_page(options->help_topic, isatty(STDOUT_FILENO) == 1));
  if (options->version) return print(fmt::format("ds4-steer {}\n", version));
  const auto model = cli::find_model(options->model_path);
  if (!model) return failure(model.error());
  if (model->bundled)
    say(fmt::format("using the small bundled model {}; name another one with -m", model->path));
  cli::set_interrupt_mode(cli::OnInterrupt::stop_then_exit);
  const auto done =
      options->command == Command::build ? build(*options, model->path) : sweep(*options, model->path);
  return done ? cli::exit_success : failure(done.error());
}

}  // namespace ds4::steer
