// ds4-quantize: makes a GGUF file from an official checkpoint folder.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "convert.hpp"
#include "ds4/version.hpp"

namespace {

constexpr int exit_failure = 1;
constexpr int exit_usage = 2;

constexpr const char* footer = R"(
Recipes:
  q8    Q8_0 projections, experts and output; F16 embedding, router, compressor, indexer and mixers; F32 norms
  bf16  BF16 matrices, F32 for what the checkpoint holds in F32: loses nothing of a BF16 checkpoint
  f16   F16 matrices, F32 for what the checkpoint holds in F32
  f32   everything in F32

The checkpoint folder holds config.json, tokenizer.json and one or more .safetensors files, with or without
model.safetensors.index.json. BF16, F16 and F32 tensors are read, and the FP8 and FP4 tensors of the official
checkpoints with their scales. Nothing is written unless all of the checkpoint is there and has the right shape.

Exit status: 0 success, 1 failure, 2 wrong usage, 130 Ctrl+C.)";

// A signal handler can reach globals only.
std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void on_stop(int signal) {
  stop_signal = signal;
}

/// The first signal ends the conversion in order, so that no temporary file stays; a second one ends it at
/// once.
void install_signal_handlers() {
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction previous{};
    sigaction(signal, &action, &previous);
    if (previous.sa_handler == SIG_IGN) sigaction(signal, &previous, nullptr);
  }
  // A closed pipe and a limit on file sizes show as failed writes.
  action.sa_handler = SIG_IGN;
  action.sa_flags = 0;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

/// Unlike fmt::print, which throws when the stream cannot be written.
bool print(std::FILE* stream, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
}

void show_progress(size_t number, size_t count, std::string_view name, std::string_view type) {
  print(stderr, fmt::format("\r\033[K[{:4}/{}] {} -> {}", number, count, name, type));
}

int convert(const ds4::quantize::ConvertOptions& options) {
  const auto summary = ds4::quantize::convert_checkpoint(options);
  if (options.progress) print(stderr, "\r\033[K");
  if (!summary) {
    if (summary.error().code == ds4::ErrorCode::cancelled) return 128 + stop_signal;
    print(stderr, fmt::format("ds4-quantize: {}\n", summary.error().message));
    return exit_failure;
  }
  std::string text = fmt::format("{}: {} tensors, {}, recipe {}\n", options.output, summary->tensors,
                                 summary->variant, ds4::quantize::recipe_name(options.recipe));
  if (summary->mtp_tensors > 0)
    text += fmt::format("{}: {} tensors, MTP block\n", options.mtp_output, summary->mtp_tensors);
  if (summary->mtp_left_out)
    text +=
        "The checkpoint also has an MTP block for speculation; --mtp-out writes it to a file of its own.\n";
  return print(stdout, text) ? 0 : exit_failure;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::weakly_canonical(a, error) == std::filesystem::weakly_canonical(b, error);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Converts an official DeepSeek V4 checkpoint to GGUF.", "ds4-quantize");
  ds4::quantize::ConvertOptions options;
  std::string recipe;
  app.set_version_flag("--version", ds4::version);
  app.add_option("--checkpoint", options.checkpoint, "Checkpoint folder to read")
      ->type_name("DIR")
      ->required();
  app.add_option("--recipe", recipe, "Number formats, see below")
      ->type_name("NAME")
      ->required()
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8"}));
  app.add_option("-o,--out", options.output, "GGUF file to write")->type_name("FILE")->required();
  app.add_option("--mtp-out", options.mtp_output, "GGUF file to write the MTP block to (default: left out)")
      ->type_name("FILE");
  app.add_option("--name", options.name, "general.name of the model (default: that of the variant)")
      ->type_name("NAME");
  app.add_flag("--overwrite", options.overwrite, "Replace files that exist");
  app.footer(footer);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  if (same_file(options.mtp_output, options.output)) {
    print(stderr, "ds4-quantize: --out and --mtp-out must be different files\n");
    return exit_usage;
  }
  install_signal_handlers();
  options.cancelled = [] { return stop_signal != 0; };
  options.recipe = *ds4::quantize::parse_recipe(recipe);
  if (isatty(STDERR_FILENO)) options.progress = show_progress;
  return convert(options);
}
