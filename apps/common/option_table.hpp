// Command lines read by a table, which also makes the help pages, so that the two cannot disagree.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/error.hpp"
#include "common/program_options.hpp"

namespace ds4::cli {

/// One option of a program. `Options` is what the program collects, `Section` the parts of its help.
template <class Options, class Section>
struct OptionRow {
  Section section;
  const char* short_name;  // "" if there is none
  const char* name;
  const char* value;  // what stands for the value in the help; nullptr for a flag
  const char* help;   // lines separated by '\n'
  Result<void> (*apply)(Options& options, const std::string& value);
};

/// The rows of several tables, in order.
template <class Row, size_t... Counts>
constexpr auto join_rows(const std::array<Row, Counts>&... tables) {
  std::array<Row, (Counts + ...)> all{};
  size_t count = 0;
  const auto append = [&](const auto& table) {
    for (const Row& row : table) all[count++] = row;
  };
  (append(tables), ...);
  return all;
}

/// Reads the arguments after the program name into `options` (a ProgramOptions). Every option takes its value
/// from the next argument, whatever that looks like; the last occurrence wins. An error is one sentence for
/// the user.
template <class Options, class Section>
Result<void> read_arguments(std::span<const OptionRow<Options, Section>> rows,
                            std::span<const char* const> arguments, Options& options) {
  using Row = OptionRow<Options, Section>;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "-h" || argument == "--help") {
      options.help = true;
      if (i + 1 < arguments.size() && arguments[i + 1][0] != '-') options.help_topic = arguments[++i];
      continue;
    }
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& candidate) {
      return argument == candidate.name ||
             (candidate.short_name[0] != '\0' && argument == candidate.short_name);
    });
    if (row == rows.end()) {
      const char* kind = argument.starts_with("-") ? "unknown option" : "unexpected argument";
      return fail(ErrorCode::invalid_argument, "{} '{}'", kind, argument);
    }
    std::string value;
    if (row->value != nullptr) {
      if (i + 1 >= arguments.size()) {
        return fail(ErrorCode::invalid_argument, "{} needs a value ({})", argument, row->value);
      }
      value = arguments[++i];
    }
    DS4_TRY(row->apply(options, value));
  }
  return {};
}

// clang-format off: a table reads best as one
/// The options that every program with a model has. `Options` is a ProgramOptions, `Section` has `runtime`.
template <class Options, class Section>
inline constexpr auto program_rows = std::to_array<OptionRow<Options, Section>>({
    {Section::runtime, "-m", "--model", "FILE", "model file (GGUF) [./ds4flash.gguf, else the small bundled model]",
     [](Options& o, const std::string& v) { return set_path(o.model_path, "--model", v); }},
    {Section::runtime, "-t", "--threads", "N", "threads, 1 to 1024 [one per processor]",
     [](Options& o, const std::string& v) { return set_integer(o.threads, "--threads", v, 1, 1024); }},
    {Section::runtime, "", "--backend", "NAME", "auto, cpu or cuda [auto]; auto takes a GPU where build and machine have one",
     [](Options& o, const std::string& v) { return set_backend(o.backend, v); }},
    {Section::runtime, "", "--cpu", nullptr, "the same as --backend cpu",
     [](Options& o, const std::string&) { return set_backend(o.backend, "cpu"); }},
    {Section::runtime, "", "--cuda", nullptr, "the same as --backend cuda",
     [](Options& o, const std::string&) { return set_backend(o.backend, "cuda"); }},
    {Section::runtime, "", "--prefill-chunk", "N", "prompt tokens processed at once, 1 to 65536 [4096]",
     [](Options& o, const std::string& v) { return set_integer(o.prefill_chunk_tokens, "--prefill-chunk", v, 1, 65536); }},
    {Section::runtime, "", "--quality", nullptr, "do not round activations to 8 bits before matrix products; slower",
     [](Options& o, const std::string&) { o.exact_activations = true; return Result<void>(); }},
    {Section::runtime, "", "--warm-weights", nullptr, "read all weights into memory before the first token",
     [](Options& o, const std::string&) { o.warm_weights = true; return Result<void>(); }},
});

/// The options of programs that generate text with drafts.
template <class Options, class Section>
inline constexpr auto drafter_rows = std::to_array<OptionRow<Options, Section>>({
    {Section::runtime, "", "--mtp", "FILE", "file with a drafter (MTP): several tokens at a time, the text is the same",
     [](Options& o, const std::string& v) { return set_path(o.mtp_path, "--mtp", v); }},
    {Section::runtime, "", "--mtp-draft", "N", "tokens drafted at a time at most, 0 to 16 [4 with --mtp]; 0 is off",
     [](Options& o, const std::string& v) -> Result<void> {
       DS4_ASSIGN(const uint64_t depth, parse_integer("--mtp-draft", v, 0, 16));
       o.mtp_depth = std::min<size_t>(depth, max_draft_depth);
       return {};
     }},
    {Section::runtime, "", "--mtp-margin", "F", "lead over the second best that a further draft needs, 0 to 1000 [3]",
     [](Options& o, const std::string& v) { return set_number(o.mtp_margin, "--mtp-margin", v, 0, 1000); }},
});

/// The options of programs that can steer what they generate.
template <class Options, class Section>
inline constexpr auto steering_rows = std::to_array<OptionRow<Options, Section>>({
    {Section::runtime, "", "--dir-steering-file", "FILE", "directions (.f32) to remove or strengthen; without a scale 1 for the part they were made from",
     [](Options& o, const std::string& v) { return set_path(o.steering_path, "--dir-steering-file", v); }},
    {Section::runtime, "", "--dir-steering-ffn", "F",
     "how much is removed from feed-forward parts, -100 to 100; negative strengthens [0]",
     [](Options& o, const std::string& v) {
       return set_number(o.steering_feed_forward.emplace(), "--dir-steering-ffn", v, -100, 100);
     }},
    {Section::runtime, "", "--dir-steering-attn", "F", "how much is removed from attention parts, -100 to 100 [0]",
     [](Options& o, const std::string& v) {
       return set_number(o.steering_attention.emplace(), "--dir-steering-attn", v, -100, 100);
     }},
});
// clang-format on

}  // namespace ds4::cli
