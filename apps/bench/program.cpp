#include "program.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "common/console.hpp"
#include "common/ending.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "ds4/version.hpp"
#include "measure.hpp"
#include "options.hpp"
#include "report.hpp"

namespace ds4::bench {
namespace {

using cli::AtomicFile;
using cli::failure;
using cli::print;
using cli::say;
using cli::warn;
using cli::Writer;

/// Where the rows go, each as soon as it is measured.
class CsvOutput {
 public:
  /// Standard output for an empty path; otherwise the file is created or emptied.
  static Result<CsvOutput> open(const std::string& path) {
    if (path.empty()) return CsvOutput(STDOUT_FILENO, "standard output");
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
    return CsvOutput(descriptor, path);
  }

  Result<void> write(std::string_view text) {
    if (!writer_.write(text)) return writer_.error(name_);
    return {};
  }

 private:
  // The descriptor is left to the end of the program.
  CsvOutput(int descriptor, std::string name) : writer_(descriptor), name_(std::move(name)) {}
  Writer writer_;
  std::string name_;
};

Result<void> check_folder(const std::string& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) {
    return fail(ErrorCode::io, "cannot write into {}: {}", path, std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) return fail(ErrorCode::io, "{} is not a folder", path);
  return {};
}

Result<void> dump_logits(const Options& options, const RunFacts& facts, const FrontierRow& row,
                         std::span<const float> logits) {
  DS4_ASSIGN(auto file, AtomicFile::create(fmt::format("{}/frontier_{:06}.logits.json", options.logits_folder,
                                                       row.ctx_tokens)));
  DS4_TRY(file.write(logits_json(options, facts, row, logits)));
  return file.commit();
}

/// The rate of the memory if anything shows it. A machine that cannot tell is no reason to stop.
std::optional<double> measured_bandwidth(const Options& options, const Engine& engine) {
  if (!options.bandwidth && options.json_path.empty()) return {};
  const auto rate = engine.measure_read_bandwidth();
  if (rate) return *rate;
  warn(rate.error().message);
  return {};
}

/// All rows; `rows` has those that were finished, whatever happens. `disk` may be null.
Result<void> measure(const Options& options, const RunFacts& facts, const Engine& engine, Session& session,
                     DiskProbe* disk, std::span<const Token> tokens, std::vector<FrontierRow>& rows) {
  DS4_ASSIGN(auto csv, CsvOutput::open(options.csv_path));
  if (options.describe) {
    for (const std::string& line : header_sentences(facts)) DS4_TRY(csv.write("# " + line + "\n"));
  }
  DS4_TRY(csv.write(csv_header(options)));
  FrontierCalls calls;
  calls.on_prefilled = [&](FrontierRow& row) -> Result<void> {
    if (!options.logits_folder.empty()) {
      DS4_ASSIGN(const auto logits, session.logits());
      DS4_TRY(dump_logits(options, facts, row, logits));
    }
    if (disk != nullptr) {
      DS4_ASSIGN(row.disk, disk->measure(session));
    }
    return {};
  };
  calls.on_row = [&](const FrontierRow& row) -> Result<void> {
    rows.push_back(row);
    if (!options.csv_path.empty()) say(row_sentence(facts, row));
    return csv.write(csv_row(options, facts, row));
  };
  return measure_frontiers(options, engine, session, tokens, calls);
}

Result<void> run_with_model(const Options& options, const std::string& model_path) {
  if (!options.logits_folder.empty()) DS4_TRY(check_folder(options.logits_folder));
  if (!options.kv_folder.empty()) DS4_TRY(DiskProbe::check_folder(options.kv_folder));
  std::optional<AtomicFile> json;
  if (!options.json_path.empty()) {
    DS4_ASSIGN(auto file, AtomicFile::create(options.json_path));
    json.emplace(std::move(file));
  }
  DS4_ASSIGN(const unsigned bits, cli::expert_bits(model_path));
  DS4_ASSIGN(const Engine engine, cli::open_engine(options, model_path));
  DS4_ASSIGN(const std::vector<Token> tokens, prompt_tokens(options, engine.tokenizer()));
  DS4_ASSIGN(Session session, engine.create_session(options.context_tokens));
  std::optional<DiskProbe> disk;
  if (!options.kv_folder.empty()) {
    DS4_ASSIGN(auto opened, DiskProbe::open(options.kv_folder, engine));
    disk.emplace(std::move(opened));
  }
  cli::set_interrupt_mode(cli::OnInterrupt::stop_then_exit);

  const RunFacts facts{this_machine(), this_build(), engine.info(),
                       model_path,     bits,         measured_bandwidth(options, engine)};
  for (const std::string& line : header_sentences(facts)) say(line);
  say(cli::context_sentence(engine, options.context_tokens));

  std::vector<FrontierRow> rows;
  auto measured = measure(options, facts, engine, session, disk ? &*disk : nullptr, tokens, rows);
  if (json) {
    DS4_TRY(json->write(json_report(options, facts, rows, measured.has_value())));
    DS4_TRY(json->commit());
  }
  return measured;
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  cli::set_program_name("ds4-bench");
  cli::install_signal_handlers();
  const auto options = parse_options(arguments);
  if (!options) {
    cli::say_error(options.error().message);
    if (options.error().code != ErrorCode::unsupported) Writer(STDERR_FILENO).write(short_help());
    return cli::exit_usage;
  }
  if (options->help) return print(help_page(options->help_topic, isatty(STDOUT_FILENO) == 1));
  if (options->version) return print(fmt::format("ds4-bench {}\n", version));
  const auto model = cli::find_model(options->model_path);
  if (!model) return failure(model.error());
  if (model->bundled) {
    say(fmt::format("using the small bundled model {}; name another one with -m", model->path));
  }
  const auto done = run_with_model(*options, model->path);
  return done ? cli::exit_success : failure(done.error());
}

}  // namespace ds4::bench
