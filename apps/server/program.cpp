#include "program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/ending.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "ds4/version.hpp"
#include "log.hpp"
#include "options.hpp"
#include "service.hpp"

namespace ds4::server {
namespace {

using cli::failure;
using cli::print;

int serve(const Options& options) {
  ShutdownSignals signals;
  std::optional<ShutdownSignals::EndProcess> loading(signals);
  Log log(options.log_level, options.log_json);
  const auto model = cli::find_model(options.model_path);
  if (!model) return failure(model.error());
  if (options.memory) {
    const auto table = cli::describe_memory(options, model->path, options.context_tokens);
    return table ? print(*table) : failure(table.error());
  }
  auto files = open_service_files(options);
  if (!files) return failure(files.error());
  const auto engine = cli::open_engine(options, model->path);
  if (!engine) return failure(engine.error());
  loading.reset();
  const auto served = serve_until_signal(*engine, options, std::move(*files), log, signals);
  return served ? cli::exit_success : failure(served.error());
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4-server");
  cli::install_signal_handlers();
  const auto options = parse_options(arguments);
  if (!options) {
    cli::say_error(options.error().message);
    cli::Writer(STDERR_FILENO).write(short_help());
    return cli::exit_usage;
  }
  if (options->help) return print(help_page(isatty(STDOUT_FILENO) == 1));
  if (options->version) return print(fmt::format("ds4-server {}\n", version));
  if (!options->folder.empty() && chdir(options->folder.c_str()) != 0) {
    return failure(fail(ErrorCode::io, "cannot change to the folder '{}'", options->folder));
  }
  return serve(*options);
}

}  // namespace ds4::server
