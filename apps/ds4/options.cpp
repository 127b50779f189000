#include "options.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.hpp"
#include "option_table.hpp"

namespace ds4::cli {
namespace {

Result<void> set_prompt(Options& o, PromptSource source, const std::string& value) {
  if (o.prompt_source != PromptSource::none) {
    return fail(ErrorCode::invalid_argument,
                "give one prompt only: a second --prompt or --prompt-file was found");
  }
  if (source == PromptSource::file && value.empty()) {
    return fail(ErrorCode::invalid_argument, "--prompt-file needs the name of a file");
  }
  if (source == PromptSource::text && value.empty()) {
    return fail(ErrorCode::invalid_argument, "the prompt is empty");
  }
  o.prompt_source = source == PromptSource::text && value == "-" ? PromptSource::standard_input : source;
  o.prompt = value;
  return {};
}

// clang-format off: a table reads best as one
constexpr auto own_rows = std::to_array<Row>({
    {Section::prompt, "-p", "--prompt", "TEXT",
     "answer one prompt; '-' reads it from standard input (the whole input is one prompt,\n"
     "also without -p when standard input is not a terminal)",
     [](Options& o, const std::string& v) { return set_prompt(o, PromptSource::text, v); }},
    {Section::prompt, "", "--prompt-file", "FILE", "the whole file is the prompt, byte for byte",
     [](Options& o, const std::string& v) { return set_prompt(o, PromptSource::file, v); }},
    {Section::prompt, "", "--raw-prompt", nullptr,
     "the prompt is an already rendered conversation: nothing is added, and special tokens\n"
     "spelled in it count (otherwise they are ordinary text)",
     [](Options& o, const std::string&) { o.raw_prompt = true; return Result<void>(); }},
    {Section::prompt, "-sys", "--system", "TEXT", "system text [You are a helpful assistant]; \"\" for none",
     [](Options& o, const std::string& v) { o.system = v; return Result<void>(); }},
    {Section::prompt, "", "--tools", "FILE",
     "offer tools: a JSON array of function schemas. A tool call of the reply is shown as text",
     [](Options& o, const std::string& v) { return set_path(o.tools_path, "--tools", v); }},
    {Section::prompt, "", "--session", "FILE",
     "go on with the conversation in FILE, if it exists, and write it back after every answer",
     [](Options& o, const std::string& v) { return set_path(o.session_path, "--session", v); }},
    {Section::prompt, "", "--think", nullptr, "reason before answering (default)",
     [](Options& o, const std::string&) { o.think = ThinkMode::high; return Result<void>(); }},
    {Section::prompt, "", "--think-max", nullptr, "reason with the longest effort; made for contexts of 393216 tokens or more",
     [](Options& o, const std::string&) { o.think = ThinkMode::max; return Result<void>(); }},
    {Section::prompt, "", "--nothink", nullptr, "answer directly",
     [](Options& o, const std::string&) { o.think = ThinkMode::none; return Result<void>(); }},

    {Section::runtime, "-c", "--ctx", "N", "context size in tokens [32768]",
     [](Options& o, const std::string& v) { return set_integer(o.context_tokens, "--ctx", v); }},
    {Section::runtime, "-n", "--tokens", "N", "generate at most N tokens [50000]",
     [](Options& o, const std::string& v) { return set_integer(o.max_tokens, "--tokens", v); }},
    {Section::sampling, "", "--temp", "F", "temperature, 0 to 100 [1]; 0 always takes the most likely token",
     [](Options& o, const std::string& v) { return set_number(o.sampling.temperature, "--temp", v, 0, 100); }},
    {Section::sampling, "", "--top-p", "F", "smallest set of tokens with this probability, 0 to 1 [1]; 0 and 1 are off",
     [](Options& o, const std::string& v) { return set_number(o.sampling.top_p, "--top-p", v, 0, 1); }},
    {Section::sampling, "", "--top-k", "N", "the N most likely tokens, 0 to 1024 [0]; 0 is off",
     [](Options& o, const std::string& v) { return set_integer(o.sampling.top_k, "--top-k", v, 0, 1024); }},
    {Section::sampling, "", "--min-p", "F", "tokens at least F times as likely as the best one, 0 to 1 [0.05]",
     [](Options& o, const std::string& v) { return set_number(o.sampling.min_p, "--min-p", v, 0, 1); }},
    {Section::sampling, "", "--seed", "N", "seed of the random numbers, not 0 [from the clock]",
     [](Options& o, const std::string& v) {
       return set_integer(o.seed, "--seed", v, 1, std::numeric_limits<uint64_t>::max());
     }},

    {Section::diagnostics, "", "--inspect", nullptr, "describe the model file",
     [](Options& o, const std::string&) { o.inspect = true; return Result<void>(); }},
    {Section::diagnostics, "", "--memory", nullptr,
     "show what the model and sessions of --ctx tokens take in memory, and load nothing",
     [](Options& o, const std::string&) { o.memory = true; return Result<void>(); }},
    {Section::diagnostics, "", "--dump-tokens", nullptr,
     "show the tokens of the prompt text itself, special tokens recognised, nothing added",
     [](Options& o, const std::string&) { o.dump_tokens = true; return Result<void>(); }},
    {Section::diagnostics, "", "--dump-logits", "FILE", "write the logits after the prompt as JSON",
     [](Options& o, const std::string& v) { return set_path(o.dump_logits_path, "--dump-logits", v); }},
    {Section::diagnostics, "", "--dump-logprobs", "FILE",
     "continue greedily for at most --tokens tokens and write the most likely ones of\n"
     "each step as JSON",
     [](Options& o, const std::string& v) { return set_path(o.dump_logprobs_path, "--dump-logprobs", v); }},
    {Section::diagnostics, "", "--logprobs-top-k", "N", "tokens per step of --dump-logprobs [20]; more than 128 count as 128",
     [](Options& o, const std::string& v) -> Result<void> {
       DS4_TRY(set_integer(o.logprobs_top_k, "--logprobs-top-k", v));
       o.logprobs_top_k = std::min<size_t>(o.logprobs_top_k, 128);
       return {};
     }},
    {Section::diagnostics, "", "--perplexity-file", "FILE",
     "score the raw text of a file: the first 32 tokens are given, at most --tokens scored",
     [](Options& o, const std::string& v) { return set_path(o.perplexity_path, "--perplexity-file", v); }},
    {Section::diagnostics, "", "--imatrix-dataset", "FILE",
     "evaluate the prompts of a calibration file and write what the experts were multiplied with;\n"
     "with --raw-prompt special tokens spelled in it count",
     [](Options& o, const std::string& v) { return set_path(o.imatrix_dataset_path, "--imatrix-dataset", v); }},
    {Section::diagnostics, "", "--imatrix-out", "FILE", "importance file to write (for ds4-quantize --imatrix)",
     [](Options& o, const std::string& v) { return set_path(o.imatrix_out_path, "--imatrix-out", v); }},
    {Section::diagnostics, "", "--imatrix-max-prompts", "N", "stop after N prompts [all]",
     [](Options& o, const std::string& v) { return set_integer(o.imatrix_max_prompts, "--imatrix-max-prompts", v); }},
    {Section::diagnostics, "", "--imatrix-max-tokens", "N", "stop after N tokens [all]",
     [](Options& o, const std::string& v) { return set_integer(o.imatrix_max_tokens, "--imatrix-max-tokens", v); }},
    {Section::diagnostics, "", "--imatrix-min-expert-samples", "N",
     "fill experts that saw fewer than N tokens up with the average token of their layer [0]",
     [](Options& o, const std::string& v) {
       return set_integer(o.imatrix_min_expert_samples, "--imatrix-min-expert-samples", v, 0);
     }},
    {Section::diagnostics, "", "--version", nullptr, "show the version",
     [](Options& o, const std::string&) { o.version = true; return Result<void>(); }},
});
// clang-format on

constexpr auto rows = join_rows(program_rows<Options, Section>, drafter_rows<Options, Section>,
                                steering_rows<Options, Section>, own_rows);

Result<void> check_importance(const Options& o) {
  const bool limits = o.imatrix_max_prompts != largest_integer || o.imatrix_max_tokens != largest_integer ||
                      o.imatrix_min_expert_samples != 0;
  if (o.imatrix_dataset_path.empty() && o.imatrix_out_path.empty() && !limits) return {};
  if (o.imatrix_dataset_path.empty() || o.imatrix_out_path.empty()) {
    return fail(ErrorCode::invalid_argument, "--imatrix-dataset and --imatrix-out go together: {} is missing",
                o.imatrix_dataset_path.empty() ? "--imatrix-dataset" : "--imatrix-out");
  }
  const bool other = o.prompt_source != PromptSource::none || o.inspect || o.memory || o.dump_tokens ||
                     !o.dump_logits_path.empty() || !o.dump_logprobs_path.empty() ||
                     !o.perplexity_path.empty();
  if (other) {
    return fail(
        ErrorCode::invalid_argument,
        "--imatrix-dataset takes its prompts from the file: no other prompt and no diagnostic goes with it");
  }
  return {};
}

/// Combinations that make no sense.
Result<void> check_combinations(const Options& o) {
  const bool has_prompt = o.prompt_source != PromptSource::none;
  if (has_prompt && !o.perplexity_path.empty()) {
    return fail(ErrorCode::invalid_argument,
                "--perplexity-file takes its text from the file: leave the prompt out");
  }
  DS4_TRY(steering_scales(o));
  DS4_TRY(check_importance(o));
  if (o.raw_prompt && !o.tools_path.empty()) {
    return fail(ErrorCode::invalid_argument,
                "--raw-prompt adds nothing to the prompt, so --tools has no place");
  }
  const bool dumps =
      !o.dump_logits_path.empty() || !o.dump_logprobs_path.empty() || !o.perplexity_path.empty();
  if (!o.session_path.empty() && (o.raw_prompt || dumps)) {
    return fail(ErrorCode::invalid_argument,
                "--session goes on with a conversation: it has no place beside --raw-prompt and diagnostics");
  }
  return {};
}

}  // namespace

std::span<const Row> option_table() {
  return rows;
}

Result<Options> parse_options(std::span<const char* const> arguments) {
  Options options;
  DS4_TRY(read_arguments(option_table(), arguments, options));
  if (options.help || options.version) return options;
  DS4_TRY(check_combinations(options));
  return options;
}

}  // namespace ds4::cli
