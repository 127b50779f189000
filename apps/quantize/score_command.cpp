#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "commands.hpp"
#include "common/atomic_file.hpp"
#include "common/progress.hpp"
#include "ds4/engine.hpp"
#include "format/gguf.hpp"
#include "format/gguf_files.hpp"
#include "score.hpp"
#include "score_lists.hpp"
#include "score_report.hpp"
#include "stop_signal.hpp"

namespace ds4::quantize {
namespace {

namespace fs = std::filesystem;

constexpr const char* footer = R"(
What to score: --text, --dataset, --continuations and --questions (repeatable), or the items of a reference file.
  ds4-quantize score model-bf16.gguf --raw-prompt --dataset texts.txt --write-reference texts.ref   # once, with the best file there is
  ds4-quantize score model-q2.gguf model-q4.gguf --reference texts.ref --svg scores.svg

NLL is the mean negative log-likelihood of a token, top-1 the share of tokens that the model finds the likeliest. With a
reference: the change of the NLL, the mean KL divergence in nats, and the share of tokens where both find the same one
the likeliest. Of continuations: how many begin as greedy decoding would, and the mean number of tokens it goes along.
Lower NLL and KL are better; docs/quantize.md says what can be read from them.

Exit status: 0 success, 1 failure, 2 wrong usage, 130 Ctrl+C.)";

struct ScoreOptions {
  std::vector<std::string> models, texts, datasets, manifests;
  std::string questions, reference, write_reference, json, svg, list, backend = "auto";
  size_t continue_tokens = 24, max_tokens = 0;
  uint32_t kept = 256;
  unsigned threads = 0;
  bool quality = false, stamp = false, raw_prompt = false;

  bool names_items() const {
    return !texts.empty() || !datasets.empty() || !manifests.empty() || !questions.empty();
  }
};

void add_options(CLI::App& app, ScoreOptions& options) {
  app.add_option("MODEL", options.models, "GGUF files to score, one after the other")->required();
  app.add_option("--text", options.texts, "Plain text; its first 32 tokens are given")->type_name("FILE");
  app.add_option(
         "--dataset", options.datasets,
         "Conversations, divided as calibration files are; with --raw-prompt special tokens spelled in "
         "them count")
      ->type_name("FILE");
  app.add_flag("--raw-prompt", options.raw_prompt, "The conversations of --dataset are rendered already");
  app.add_option("--continuations", options.manifests,
                 "manifest.tsv: an id, a file with a question and one with the answer to it in each line")
      ->type_name("FILE");
  app.add_option("--questions", options.questions,
                 "JSON lines with \"id\" and \"prompt\", of which the model's greedy answers are kept; with "
                 "--write-reference")
      ->type_name("FILE");
  app.add_option("--continue", options.continue_tokens, "Tokens of such an answer at most [24]")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-tokens", options.max_tokens, "Score no more than N tokens of an item")
      ->type_name("N")
      ->check(CLI::Range(size_t{1}, size_t{1} << 30));
  app.add_option("--reference", options.reference, "Compare with what another model made of the same items")
      ->type_name("FILE");
  app.add_option("--write-reference", options.write_reference, "Write what this model makes of the items")
      ->type_name("FILE");
  app.add_option(
         "--keep", options.kept,
         "Log-probabilities written for a token, the likeliest ones [256]; those of all others as a sum")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--json", options.json, "Write all numbers, also of every item")->type_name("FILE");
  app.add_option("--svg", options.svg, "Write a chart that compares the models")->type_name("FILE");
  app.add_option("--tsv", options.list,
                 "Write a line for each continuation, for `ds4-quantize compare`; with one model")
      ->type_name("FILE");
  app.add_flag("--stamp", options.stamp,
               "Write the score into the keys of each model's file, which is written anew and then replaced");
  app.add_option("--backend", options.backend, "auto, cpu or cuda")
      ->type_name("NAME")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--threads", options.threads, "Threads, 0 = one for each processor")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--quality", options.quality, "Do not round activations to 8 bits before matrix products");
  app.footer(footer);
}

/// What is wrong with the options together, or nothing.
const char* mistake(const ScoreOptions& options) {
  if (!options.reference.empty() && options.names_items())
    return "the items come from the reference file: leave the others out";
  if (options.reference.empty() && !options.names_items())
    return "nothing to score: --reference, --text, --dataset, --continuations or --questions";
  if (!options.reference.empty() && !options.write_reference.empty())
    return "--reference and --write-reference exclude each other";
  if (!options.write_reference.empty() && options.models.size() > 1)
    return "--write-reference takes one model";
  if (!options.list.empty() && options.models.size() > 1) return "--tsv takes one model";
  if (!options.questions.empty() && options.write_reference.empty())
    return "--questions needs --write-reference, which keeps the answers";
  if (!options.reference.empty() && options.max_tokens > 0)
    return "--max-tokens is decided when the reference file is written";
  return nullptr;
}

class ScoreCommand {
 public:
  explicit ScoreCommand(const ScoreOptions& options) : options_(options) {}

  Result<void> run() {
    if (!options_.reference.empty()) {
      DS4_ASSIGN(reference_, ReferenceFile::open(options_.reference));
      compared_ = {reference_->header().model, reference_->fingerprint()};
    }
    // Scoring takes hours: what would fail after it is tried before it, and the table needs no file.
    for (const std::string& path : options_.models) DS4_TRY(check_model(path));
    DS4_TRY(check_outputs());
    DS4_TRY(create(options_.json, json_));
    DS4_TRY(create(options_.svg, svg_));
    DS4_TRY(create(options_.list, list_));
    for (const std::string& path : options_.models) DS4_TRY(score_model(path));
    if (!print(stdout, score_table(scores_))) return fail(ErrorCode::io, "standard output cannot be written");
    if (json_) DS4_TRY(write(*json_, score_json(scores_, compared_)));
    if (svg_) DS4_TRY(write(*svg_, score_chart(scores_)));
    if (list_) DS4_TRY(write(*list_, score_list(scores_[0].items)));
    if (options_.stamp) {
      for (const ModelScore& score : scores_) DS4_TRY(stamp_score(score, compared_, stop_requested));
    }
    return {};
  }

 private:
  Result<void> check_model(const std::string& path) const {
    if (options_.stamp) return check_stampable(path);
    DS4_ASSIGN([[maybe_unused]] const format::GgufFile file, format::GgufFile::open(path));
    return {};
  }

  Result<void> check_outputs() const {
    std::vector<std::string> inputs;
    for (const std::string& path : options_.models) {
      for (std::string& file : format::gguf_files(path)) inputs.push_back(std::move(file));
    }
    for (const auto& files : {options_.texts, options_.datasets, options_.manifests})
      inputs.insert(inputs.end(), files.begin(), files.end());
    inputs.insert(inputs.end(), {options_.questions, options_.reference});
    std::set<std::string> names;
    for (const std::string& path : {options_.json, options_.svg, options_.list, options_.write_reference}) {
      DS4_TRY(cli::check_not_read(path, inputs));
      std::error_code error;
      const fs::path whole = fs::weakly_canonical(path, error);
      const fs::file_status status = fs::status(whole, error);
      const bool is_file = !fs::exists(status) || fs::is_regular_file(status);
      if (!path.empty() && is_file && !names.insert(whole.string()).second)
        return fail(ErrorCode::invalid_argument, "{} would be written twice", path);
    }
    return {};
  }

  static Result<void> create(const std::string& path, std::optional<cli::AtomicFile>& file) {
    if (path.empty()) return {};
    DS4_ASSIGN(cli::AtomicFile created, cli::AtomicFile::create(path));
    file.emplace(std::move(created));
    return {};
  }

  static Result<void> write(cli::AtomicFile& file, const std::string& text) {
    DS4_TRY(file.write(text));
    return file.commit();
  }

  Result<Engine> open(const std::string& path) const {
    EngineOptions options;
    options.model_path = path;
    options.threads = options_.threads;
    options.exact_activations = options_.quality;
    options.backend = options_.backend == "cpu"    ? BackendChoice::cpu
                      : options_.backend == "cuda" ? BackendChoice::cuda
                                                   : BackendChoice::automatic;
    options.on_notice = [](const std::string& text) {
      print(stderr, fmt::format("ds4-quantize: {}\n", text));
    };
    return Engine::open(options);
  }

  Result<std::vector<ScoreItem>> read_items(const Engine& engine) const {
    std::vector<ScoreItem> items;
    const auto add = [&](std::vector<ScoreItem> more) {
      std::move(more.begin(), more.end(), std::back_inserter(items));
    };
    for (const std::string& path : options_.texts) {
      DS4_ASSIGN(ScoreItem item, read_text_item(path, engine.tokenizer()));
      items.push_back(std::move(item));
    }
    for (const std::string& path : options_.datasets) {
      bool spells_special = false;
      DS4_ASSIGN(auto read,
                 read_dataset_items(path, engine.tokenizer(), options_.raw_prompt, spells_special));
      add(std::move(read));
      if (spells_special)
        print(stderr, fmt::format("ds4-quantize: {} spells special tokens, which count as plain text; "
                                  "--raw-prompt makes them special\n",
                                  path));
    }
    for (const std::string& path : options_.manifests) {
      DS4_ASSIGN(auto read, read_continuations(path, engine.tokenizer()));
      add(std::move(read));
    }
    if (!options_.questions.empty()) {
      DS4_ASSIGN(const auto questions, read_questions(options_.questions));
      DS4_ASSIGN(auto answered,
                 continue_questions(engine, questions, options_.continue_tokens, stop_requested));
      add(std::move(answered));
    }
    if (options_.max_tokens > 0) cut_items(items, options_.max_tokens);
    return items;
  }

  Result<void> check_vocabulary(const Engine& engine, const std::string& path) const {
    const ReferenceHeader& header = reference_->header();
    if (header.vocabulary != engine.tokenizer().vocabulary_size() ||
        header.vocabulary_fingerprint != vocabulary_fingerprint(engine.tokenizer()))
      return fail(ErrorCode::invalid_argument, "{} has another vocabulary than the model of {}", path,
                  options_.reference);
    return {};
  }

  Result<void> score_model(const std::string& path) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    DS4_ASSIGN(const Engine engine, open(path));
    if (reference_) DS4_TRY(check_vocabulary(engine, path));
    ModelScore score;
    score.path = path;
    score.name = engine.info().name;
    score.backend = engine.info().backend;
    score.weight_bytes = engine.info().weight_bytes;
    score.compared = reference_.has_value();
    score.load_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::vector<ScoreItem> read;
    if (!reference_) {
      DS4_ASSIGN(read, read_items(engine));
    }
    const std::vector<ScoreItem>& items = reference_ ? reference_->items() : read;
    std::optional<ReferenceWriter> writer;
    if (!options_.write_reference.empty()) {
      const auto vocabulary = static_cast<uint32_t>(engine.tokenizer().vocabulary_size());
      const ReferenceHeader header{vocabulary_fingerprint(engine.tokenizer()), vocabulary,
                                   std::min(options_.kept, vocabulary), engine.info().name};
      DS4_ASSIGN(ReferenceWriter created, ReferenceWriter::create(options_.write_reference, header));
      writer.emplace(std::move(created));
    }
    cli::ProgressLine line;
    ScoreCallbacks callbacks;
    callbacks.cancelled = stop_requested;
    callbacks.progress = [&](size_t done, size_t total) {
      line.show(fmt::format("{}: scored {} of {} tokens", path, done, total), done == total);
    };
    DS4_ASSIGN(score.items, score_items(engine, items, reference_ ? &*reference_ : nullptr,
                                        writer ? &*writer : nullptr, callbacks));
    if (writer) DS4_TRY(writer->commit());
    score.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    scores_.push_back(std::move(score));
    return {};
  }

  const ScoreOptions& options_;
  std::optional<ReferenceFile> reference_;
  Compared compared_;
  std::optional<cli::AtomicFile> json_, svg_, list_;
  std::vector<ModelScore> scores_;
};

}  // namespace

int run_score(int argc, char** argv) {
  CLI::App app("Scores models on texts, and compares them with a reference.", "ds4-quantize score");
  ScoreOptions options;
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : exit_usage;
  }
  if (const char* what = mistake(options)) {
    print(stderr, fmt::format("ds4-quantize: {}\n", what));
    return exit_usage;
  }
  install_stop_signals();
  const auto done = ScoreCommand(options).run();
  if (done) return 0;
  if (done.error().code == ErrorCode::cancelled) return stop_status();
  print(stderr, fmt::format("ds4-quantize: {}\n", done.error().message));
  return exit_failure;
}

}  // namespace ds4::quantize
