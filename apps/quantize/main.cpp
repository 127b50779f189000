// ds4-quantize: makes a GGUF file from an official checkpoint folder, or from another GGUF file.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "convert.hpp"
#include "ds4/version.hpp"
#include "original_options.hpp"
#include "stop_signal.hpp"

namespace {

using ds4::quantize::exit_failure;
using ds4::quantize::exit_usage;
using ds4::quantize::print;

constexpr const char* footer = R"(
Other commands, with a --help of their own:
  ds4-quantize splice   puts layers of experts of one GGUF file into another
  ds4-quantize score    tells how well files predict texts, and how far they are from a reference
  ds4-quantize compare  compares two lists of scores of continuations

Recipes:
  q2     IQ2_XXS for gate and up experts, Q2_K for down experts; everything else as q8
  q2-q4  as q2, but q4 in the last layers (37-42 of Flash)
  q4     Q4_K experts; everything else as q8
  mxfp4  MXFP4 experts, which keeps the FP4 experts of an official checkpoint exactly; everything else as q8
  q8     Q8_0 projections, experts and output; F16 embedding, router, compressor, indexer and mixers; F32 norms
  bf16   BF16 matrices, F32 for what the checkpoint holds in F32: loses nothing of a BF16 checkpoint
  f16    F16 matrices, F32 for what the checkpoint holds in F32
  f32    everything in F32
The experts of an MTP block are Q4_K with q2, q2-q4 and q4.

A recipe file has lines "PATTERN FORMAT" for GGUF tensor names, of which the first that fits decides, and may have
one line "base RECIPE" for the others (default q8). In patterns "*" stands for any characters and {3,5-8} for one of
these numbers. Formats: f32, f16, bf16, q8_0, q4_k, q2_k, iq2_xxs, mxfp4. "#" begins a comment:
  base q2
  blk.{0-2}.ffn_*_exps.weight q4_k   # gate and up of a layer must have one format
Norms, biases and tables have one format; mixers take f32, f16 and bf16 only.

Sources: a checkpoint folder holds config.json, tokenizer.json and one or more .safetensors files, with or without
model.safetensors.index.json. BF16, F16 and F32 tensors are read, and the FP8 and FP4 tensors of the official
checkpoints with their scales. A GGUF file of this model, or of its drafter (MTP block), may hold any of the formats
above. Nothing is written unless
all of the source is there and has the right shape; the result does not depend on the number of threads.

An importance file tells how large the inputs of each column were (docs/quantize.md). Without one, IQ2_XXS takes the
energy of each column of the weights.

Exit status: 0 success, 1 failure, 2 wrong usage, 130 Ctrl+C.)";

/// A line on the terminal with the time that is left, guessed from the part that is done.
class ProgressLine {
 public:
  void show(const ds4::quantize::ConvertProgress& progress) {
    const auto now = Clock::now();
    if (progress.tensor == shown_tensor_ && now - shown_ < std::chrono::milliseconds(200)) return;
    shown_ = now;
    shown_tensor_ = progress.tensor;
    const double elapsed = std::chrono::duration<double>(now - begin_).count();
    std::string left;
    if (elapsed > 2 && progress.done > 0.01) {
      const auto seconds = static_cast<long>(elapsed / progress.done * (1 - progress.done));
      left = fmt::format(", {}:{:02}:{:02} left", seconds / 3600, seconds / 60 % 60, seconds % 60);
    }
    print(stderr, fmt::format("\r\033[K[{:4}/{}] {:.0f} %{}  {} -> {}", progress.tensor, progress.tensors,
                              100 * progress.done, left, progress.name, progress.type));
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now(), shown_;
  size_t shown_tensor_ = 0;
};

int convert(const ds4::quantize::ConvertOptions& options) {
  const auto summary = ds4::quantize::convert_model(options);
  if (options.progress) print(stderr, "\r\033[K");
  if (!summary) {
    if (summary.error().code == ds4::ErrorCode::cancelled) return ds4::quantize::stop_status();
    print(stderr, fmt::format("ds4-quantize: {}\n", summary.error().message));
    return exit_failure;
  }
  if (options.dry_run) return print(stdout, summary->plan) ? 0 : exit_failure;
  std::string text;
  if (summary->tensors > 0)
    text = fmt::format("{}: {} tensors, {}, recipe {}\n", options.output, summary->tensors, summary->variant,
                       options.recipe.name());
  if (summary->resumed_tensors > 0)
    text += fmt::format("{} tensors were there from an earlier run\n", summary->resumed_tensors);
  if (summary->mtp_tensors > 0)
    text += fmt::format("{}: {} tensors, MTP block, recipe {}\n",
                        options.mtp_output.empty() ? options.output : options.mtp_output,
                        summary->mtp_tensors, options.recipe.name());
  if (summary->mtp_left_out)
    text +=
        "The checkpoint also has an MTP block for speculation; --mtp-out writes it to a file of its own.\n";
  return print(stdout, text) ? 0 : exit_failure;
}

/// True if one of the files has the name of the other, or of what is written beside it.
bool same_files(const std::string& a, const std::string& b) {
  const auto whole = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::weakly_canonical(path, error);
  };
  for (const char* suffix : {"", ".tmp", ".sha256"}) {
    if (whole(a + suffix) == whole(b) || whole(a) == whole(b + suffix)) return true;
  }
  return false;
}

struct Recipes {
  std::string name, file;
  std::vector<std::string> rules;
};

/// The recipe that was asked for, or nothing after a message.
std::optional<ds4::quantize::Recipe> read_recipe(const Recipes& asked) {
  using ds4::quantize::Recipe;
  std::optional<Recipe> recipe = Recipe::named(asked.name);
  if (!asked.file.empty()) {
    auto read = Recipe::read(asked.file);
    if (!read) {
      print(stderr, fmt::format("ds4-quantize: {}\n", read.error().message));
      return std::nullopt;
    }
    recipe = *std::move(read);
  }
  for (const std::string& rule : asked.rules) {
    if (const auto added = recipe->add_rule(rule); !added) {
      print(stderr, fmt::format("ds4-quantize: {}\n", added.error().message));
      return std::nullopt;
    }
  }
  return recipe;
}

void add_options(CLI::App& app, ds4::quantize::ConvertOptions& options, Recipes& recipes) {
  auto* source = app.add_option_group("Source");
  source->add_option("--checkpoint", options.checkpoint, "Checkpoint folder to read")->type_name("DIR");
  source->add_option("--gguf", options.gguf, "GGUF file of this model to read")->type_name("FILE");
  source->require_option(1);
  auto* recipe = app.add_option_group("Recipe");
  recipe->add_option("--recipe", recipes.name, "Number formats, see below")
      ->type_name("NAME")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8", "mxfp4", "q4", "q2-q4", "q2"}));
  recipe->add_option("--recipe-file", recipes.file, "Number formats from a file, see below")
      ->type_name("FILE");
  recipe->require_option(1);
  app.add_option("--tensor-type", recipes.rules, "A rule that comes before those of the recipe; repeatable")
      ->type_name("PATTERN=FORMAT")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("-o,--out", options.output, "GGUF file to write the model to; not needed with --mtp-out")
      ->type_name("FILE");
  app.add_option("--mtp-out", options.mtp_output,
                 "GGUF file to write the MTP block to (default: left out, or left where a GGUF file has it)")
      ->type_name("FILE");
  app.add_option("--name", options.name, "general.name of the model (default: that of the variant or file)")
      ->type_name("NAME");
  app.add_option("--imatrix", options.imatrix,
                 "Importance file to weigh errors by, or a GGUF file with vectors inside")
      ->type_name("FILE");
  app.add_flag("--imatrix-strict", options.imatrix_strict,
               "Fail where the importance file has no vector for a tensor that could use one")
      ->needs("--imatrix");
  app.add_flag("--embed-imatrix", options.embed_imatrix,
               "Put the vectors into the model's file, which --imatrix can read them from later")
      ->needs("--imatrix");
  app.add_option("--threads", options.threads, "Threads, 0 = one for each processor")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--dry-run", options.dry_run, "Print the plan with sizes, memory and time, and write nothing");
  app.add_flag("--resume", options.resume,
               "Continue the .tmp file of a run that was ended, and keep it if this one is ended too");
  app.add_flag("--checksums", options.checksums, "Write FILE.sha256 beside each file");
  app.add_flag("--overwrite", options.overwrite, "Replace files that exist");
  app.footer(footer);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command == "splice") return ds4::quantize::run_splice(argc - 1, argv + 1);
  if (command == "score") return ds4::quantize::run_score(argc - 1, argv + 1);
  if (command == "compare") return ds4::quantize::run_compare(argc - 1, argv + 1);
  for (int i = 1; i < argc; ++i) {
    if (const std::string_view advice = ds4::quantize::instead_of(argv[i]); !advice.empty()) {
      print(stderr, fmt::format("ds4-quantize: {} is not known here: {}\n", argv[i], advice));
      return exit_usage;
    }
  }
  CLI::App app("Converts DeepSeek V4 models to GGUF files of any number format.", "ds4-quantize");
  ds4::quantize::ConvertOptions options;
  Recipes recipes;
  app.set_version_flag("--version", ds4::version);
  add_options(app, options, recipes);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  if (options.output.empty() && options.mtp_output.empty() && !options.dry_run) {
    print(stderr, "ds4-quantize: --out is required, or --mtp-out\n");
    return exit_usage;
  }
  if (!options.mtp_output.empty() && !options.output.empty() &&
      same_files(options.mtp_output, options.output)) {
    print(stderr, "ds4-quantize: --out and --mtp-out must be different files\n");
    return exit_usage;
  }
  const auto recipe = read_recipe(recipes);
  if (!recipe) return exit_usage;
  ds4::quantize::install_stop_signals();
  options.cancelled = ds4::quantize::stop_requested;
  options.recipe = *recipe;
  options.recipe_file = recipes.file;
  options.notice = [](const std::string& sentence) {
    print(stderr, fmt::format("ds4-quantize: {}\n", sentence));
  };
  ProgressLine line;
  if (isatty(STDERR_FILENO))
    options.progress = [&](const ds4::quantize::ConvertProgress& progress) { line.show(progress); };
  return convert(options);
}
