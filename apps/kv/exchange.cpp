// ds4-kv import and export: files of the original engine.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "common/progress.hpp"
#include "program.hpp"
#include "store/engine_state.hpp"
#include "store/kvc_exchange.hpp"
#include "store/kvc_file.hpp"
#include "store/model_states.hpp"

namespace ds4::kv {
namespace {

namespace fs = std::filesystem;

constexpr const char* import_footer = R"(
Reads KVC files of the original engine, version 1, with states of DeepSeek V4 Flash. Of a folder, all files are taken
that have names as that engine gives them. Nothing in such a file tells which weights it was made with: they must be
those of --model, or answers will be nonsense. Replies with tool calls whose ids are in a file are kept with them.

A server finds the states if it is started with the same --model, --mtp and --quality, and without steering.)";

constexpr const char* export_footer = R"(
Writes KVC files that the original engine reads, with states of DeepSeek V4 Flash. TARGET is a file, or a folder, in
which files get the names that engine looks for. Ids of tool calls are not written.

Without --key, the state that was used last is written to a file, and all states of the model to a folder.)";

struct ImportOptions {
  store::ModelFiles files;
  std::vector<std::string> paths;  // the last one is the folder of the cache
  uint64_t space_mib = 0;
};

struct ExportOptions {
  store::ModelFiles files;
  std::string folder, target;
  std::vector<std::string> keys;
};

void add_model_options(CLI::App& app, store::ModelFiles& files) {
  app.add_option("-m,--model", files.model_path,
                 "Model file (GGUF) that the states belong to [./ds4flash.gguf]")
      ->type_name("FILE");
  app.add_option("--mtp", files.mtp_path, "File with the drafter that the server is started with")
      ->type_name("FILE");
  app.add_flag("--quality", files.exact_activations, "The server is started with --quality");
}

Result<store::ModelStates> read_model(store::ModelFiles& files) {
  DS4_ASSIGN(const auto choice, cli::find_model(files.model_path));
  files.model_path = choice.path;
  DS4_ASSIGN(auto model, store::read_model_states(files));
  DS4_TRY(store::require_flash(model.layout));
  return model;
}

/// The store of the model's states. Without a limit nothing is evicted from it.
Result<std::unique_ptr<store::StateStore>> open_states(const std::string& folder, uint64_t space_mib,
                                                       const store::ModelStates& model) {
  auto options = store::store_options(model.layout, model.fingerprint);
  options.directory.directory = folder;
  options.directory.budget_bytes = space_mib == 0 ? UINT64_MAX : space_mib << 20;
  options.directory.log = [](std::string_view line) { cli::say(line); };
  options.policy.min_tokens = 1;
  return store::StateStore::open(std::move(options));
}

/// The paths themselves, and instead of a folder the files in it that have the names of such files.
std::vector<std::string> files_of(std::span<const std::string> paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (store::is_kvc_file_name(entry->path().filename().string())) found.push_back(entry->path());
    }
    if (error) cli::warn(fmt::format("{}: {}", path, error.message()));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

const char* outcome_text(store::WriteReport::Outcome outcome) {
  switch (outcome) {
    case store::WriteReport::Outcome::written:
      return "written";
    case store::WriteReport::Outcome::known:
      return "is there already";
    case store::WriteReport::Outcome::too_short:
      return "is too short to be kept";
    case store::WriteReport::Outcome::too_close:
      return "is too close to another one";
  }
  return "";
}

/// What stands in the way of one file only does not stand in the way of the next.
bool is_of_the_file(ErrorCode code) {
  return code == ErrorCode::format || code == ErrorCode::unsupported || code == ErrorCode::not_found;
}

Result<int> import_files(ImportOptions options) {
  DS4_ASSIGN(const auto model, read_model(options.files));
  const auto files = files_of(std::span(options.paths).first(options.paths.size() - 1));
  if (files.empty()) return fail(ErrorCode::not_found, "there are no KVC files in {}", options.paths.front());
  DS4_ASSIGN(const auto store, open_states(options.paths.back(), options.space_mib, model));
  int status = cli::exit_success;
  for (const std::string& file : files) {
    const auto done = store::import_kvc(*store, file, {model.layout, model.tokenizer});
    if (!done && !is_of_the_file(done.error().code)) return done.error();
    if (!done) {
      cli::say_error(done.error().message);
      status = cli::exit_failure;
      continue;
    }
    for (const std::string& notice : done->notices) cli::warn(notice);
    DS4_TRY(print(fmt::format("{}: {} tokens, {} replies with tool calls, {} ({}): {}\n", file, done->tokens,
                              done->replies, outcome_text(done->written.outcome),
                              cli::human_bytes(done->written.bytes_written), done->written.key.hex())));
  }
  return status;
}

/// Those to be written, the last used first.
Result<std::vector<store::StoreEntry>> entries_of(store::StateStore& store, const ExportOptions& options) {
  std::vector<store::StoreEntry> entries;
  for (const std::string& key : options.keys) {
    DS4_ASSIGN(entries.emplace_back(), find_entry(store, key));
  }
  if (options.keys.empty()) {
    DS4_ASSIGN(entries, store.list());
    std::erase_if(entries, [&](const auto& entry) { return entry.fingerprint != store.fingerprint(); });
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.used, a.tokens) > std::pair(b.used, b.tokens);
    });
  }
  if (entries.empty())
    return fail(ErrorCode::not_found, "{}: there is no state of this model", options.folder);
  return entries;
}

Result<int> export_entries(ExportOptions options) {
  DS4_ASSIGN(const auto model, read_model(options.files));
  DS4_ASSIGN(const unsigned bits, cli::expert_bits(options.files.model_path));
  DS4_TRY(open_store(options.folder));  // which must be there
  DS4_ASSIGN(const auto store, open_states(options.folder, 0, model));
  DS4_ASSIGN(auto entries, entries_of(*store, options));
  std::error_code error;
  if (!fs::is_directory(options.target, error)) {
    if (options.keys.empty()) entries.resize(1);
    if (entries.size() > 1)
      return fail(ErrorCode::invalid_argument, "{} is not a folder: {} states need one", options.target,
                  entries.size());
  }
  for (const store::StoreEntry& entry : entries) {
    DS4_ASSIGN(const auto done,
               store::export_kvc(*store, entry, options.target, {model.layout, model.tokenizer},
                                 bits >= 4 ? uint8_t{4} : uint8_t{2}));
    DS4_TRY(
        print(fmt::format("{}: {} tokens, {}\n", done.path, done.tokens, cli::human_bytes(done.file_bytes))));
  }
  return cli::exit_success;
}

}  // namespace

void add_import(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("import", "files of the original engine into a disk cache");
  auto options = std::make_shared<ImportOptions>();
  add_model_options(*command, options->files);
  command
      ->add_option("FILE... DIR", options->paths,
                   "KVC files or folders of them, then the folder of the cache")
      ->required()
      ->expected(2, 1 << 20)
      ->option_text(" ");
  command
      ->add_option("--kv-disk-space-mb", options->space_mib,
                   "space for the cache in MiB, as the server is told [no limit]")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 30));
  command->footer(import_footer);
  command->callback([&action, options] { action = [options] { return import_files(*options); }; });
}

void add_export(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("export", "states as files of the original engine");
  auto options = std::make_shared<ExportOptions>();
  add_model_options(*command, options->files);
  command->add_option("DIR", options->folder, "folder of the disk cache")->required();
  command->add_option("TARGET", options->target, "file or folder to write to")->required();
  command->add_option("--key", options->keys, "which states; repeatable")
      ->type_name("KEY")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->footer(export_footer);
  command->callback([&action, options] { action = [options] { return export_entries(*options); }; });
}

}  // namespace ds4::kv
