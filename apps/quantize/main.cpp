// ds4-quantize: makes a GGUF file from an official checkpoint folder.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

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

Exit status: 0 success, 1 failure, 2 wrong usage.)";

void show_progress(size_t number, size_t count, std::string_view name, std::string_view type) {
  fmt::print(stderr, "\r\033[K[{:4}/{}] {} -> {}", number, count, name, type);
  std::fflush(stderr);
}

int convert(const ds4::quantize::ConvertOptions& options) {
  const auto summary = ds4::quantize::convert_checkpoint(options);
  if (options.progress) fmt::print(stderr, "\r\033[K");
  if (!summary) {
    fmt::print(stderr, "ds4-quantize: {}\n", summary.error().message);
    return exit_failure;
  }
  fmt::print("{}: {} tensors, {}, recipe {}\n", options.output, summary->tensors, summary->variant,
             ds4::quantize::recipe_name(options.recipe));
  if (summary->mtp_tensors > 0)
    fmt::print("{}: {} tensors, MTP block\n", options.mtp_output, summary->mtp_tensors);
  if (summary->mtp_left_out)
    fmt::print(
        "The checkpoint also has an MTP block for speculation; --mtp-out writes it to a file of its own.\n");
  return 0;
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
  if (options.mtp_output == options.output) {
    fmt::print(stderr, "ds4-quantize: --out and --mtp-out must be different files\n");
    return exit_usage;
  }
  options.recipe = *ds4::quantize::parse_recipe(recipe);
  if (isatty(STDERR_FILENO)) options.progress = show_progress;
  return convert(options);
}
