#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "common/progress.hpp"
#include "ds4/version.hpp"
#include "splice.hpp"
#include "stop_signal.hpp"

namespace ds4::quantize {
namespace {

constexpr const char* footer = R"(
OUT has the keys and tensors of BASE, and the routed experts of the layers from DONOR in the formats they have there;
nothing is rounded anew. Both files must hold one model: the same counts and tokenizer, and the same norms, biases and
router tables byte for byte. Layers of another importance or recipe than the rest are what this is for:
  ds4-quantize splice model-q2.gguf model-q4.gguf --layers 37-42 model-q2-q4.gguf

Exit status: 0 success, 1 failure, 2 wrong usage, 130 Ctrl+C.)";

std::string summary_text(const SpliceOptions& options, const SpliceSummary& summary) {
  std::string text =
      fmt::format("layers {} of {}: {} tensors", summary.layers, options.donor, summary.donated);
  for (const auto& [change, count] : summary.changes) text += fmt::format(", {} {}", count, change);
  text += fmt::format("\ntensor data {} -> {} bytes ({:+d})\n", summary.base_bytes, summary.tensor_bytes,
                      static_cast<int64_t>(summary.tensor_bytes - summary.base_bytes));
  if (summary.different_sources)
    text += "The two files were made from different sources (their fingerprints differ), of one model.\n";
  text += fmt::format("{}{} tensors, file of {} bytes\n",
                      options.output.empty() ? "" : fmt::format("{}: ", options.output), summary.tensors,
                      summary.file_bytes);
  return text;
}

}  // namespace

int run_splice(int argc, char** argv) {
  CLI::App app("Puts the routed experts of some layers of one GGUF file into another file of the same model.",
               "ds4-quantize splice");
  SpliceOptions options;
  app.add_option("BASE,--base", options.base, "GGUF file with everything else")->required();
  app.add_option("DONOR,--donor", options.donor, "GGUF file with the experts")->required();
  app.add_option("OUT,-o,--out", options.output, "GGUF file to write; not needed with --dry-run");
  app.add_option("--layers,--q4-layers", options.layers,
                 "Layers to take from DONOR, such as 37-42 or 0-2,40-42")
      ->type_name("LIST")
      ->required();
  app.add_flag("--dry-run", options.dry_run, "Check both files and print what would be written");
  app.add_flag("--checksums", options.checksums, "Write OUT.sha256 as well");
  app.add_flag("--overwrite,--force", options.overwrite, "Replace a file that exists");
  app.footer(footer);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  if (options.output.empty() && !options.dry_run) {
    print(stderr, "ds4-quantize: OUT is required\n");
    return exit_usage;
  }
  install_stop_signals();
  options.cancelled = stop_requested;
  cli::ProgressLine line;
  options.progress = [&](uint64_t done, uint64_t total) {
    line.show(fmt::format("copied {} of {}", cli::human_bytes(done), cli::human_bytes(total)), false);
  };
  const auto summary = splice_models(options);
  if (!summary) {
    if (summary.error().code == ErrorCode::cancelled) return stop_status();
    print(stderr, fmt::format("ds4-quantize: {}\n", summary.error().message));
    return exit_failure;
  }
  return print(stdout, summary_text(options, *summary)) ? 0 : exit_failure;
}

}  // namespace ds4::quantize
