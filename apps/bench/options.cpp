#include "options.hpp"

#include <array>
#include <limits>

#include "base/error.hpp"

namespace ds4::bench {
namespace {

using cli::largest_integer;
using cli::set_integer;
using cli::set_number;
using cli::set_path;

Result<void> refuse_cluster(Options&, const std::string&) {
  return fail(ErrorCode::unsupported,
              "this build runs on one machine; it has no --role or other options of a cluster");
}
Result<void> refuse_streaming(Options&, const std::string&) {
  return fail(
      ErrorCode::unsupported,
      "this build keeps the weights in memory; it does not stream experts from disk (--ssd-streaming...)");
}

// clang-format off: a table reads best as one
constexpr auto own_rows = std::to_array<Row>({
    {Section::benchmark, "", "--prompt-file", "FILE", "the text to walk through, without template [a built-in text]",
     [](Options& o, const std::string& v) { return set_path(o.raw_prompt_path, "--prompt-file", v); }},
    {Section::benchmark, "", "--chat-prompt-file", "FILE", "the text as one message of a chat, without reasoning",
     [](Options& o, const std::string& v) { return set_path(o.chat_prompt_path, "--chat-prompt-file", v); }},
    {Section::benchmark, "-sys", "--system", "TEXT", "system text of --chat-prompt-file [You are a helpful assistant.]",
     [](Options& o, const std::string& v) { o.system = v; return Result<void>(); }},
    {Section::benchmark, "", "--ctx-start", "N", "first context length to measure at [2048]",
     [](Options& o, const std::string& v) { return set_integer(o.steps.first, "--ctx-start", v); }},
    {Section::benchmark, "", "--ctx-max", "N", "last one [32768]",
     [](Options& o, const std::string& v) { return set_integer(o.steps.last, "--ctx-max", v); }},
    {Section::benchmark, "", "--ctx-alloc", "N", "context of the session [--ctx-max + --gen-tokens + 1]",
     [](Options& o, const std::string& v) { return set_integer(o.context_tokens, "--ctx-alloc", v); }},
    {Section::benchmark, "", "--step-incr", "N", "tokens from one length to the next, while --step-mul is 1 [2048]",
     [](Options& o, const std::string& v) { return set_integer(o.steps.increment, "--step-incr", v, 0); }},
    {Section::benchmark, "", "--step-mul", "F", "factor from one length to the next, at least 1 [1]",
     [](Options& o, const std::string& v) {
       return set_number(o.steps.multiplier, "--step-mul", v, 1, std::numeric_limits<double>::max());
     }},
    {Section::benchmark, "-n", "--gen-tokens", "N", "tokens to decode at each length [128]; 0 measures prefill alone",
     [](Options& o, const std::string& v) { return set_integer(o.gen_tokens, "--gen-tokens", v, 0); }},
    {Section::benchmark, "", "--tokens", "N", "the same as --gen-tokens",
     [](Options& o, const std::string& v) { return set_integer(o.gen_tokens, "--tokens", v, 0); }},
    {Section::benchmark, "", "--teacher-forced-decode", nullptr, "decode the tokens that follow in the text, not the likeliest ones",
     [](Options& o, const std::string&) { o.teacher_forced = true; return Result<void>(); }},
    {Section::benchmark, "", "--kv-disk-dir", "DIR",
     "also write the state at each length into this folder as the disk cache does, read it\n"
     "back, compare, and add six columns: bytes, seconds and GB/s of writing and of reading",
     [](Options& o, const std::string& v) { return set_path(o.kv_folder, "--kv-disk-dir", v); }},

    {Section::output, "", "--csv", "FILE", "where the rows go [standard output]",
     [](Options& o, const std::string& v) { return set_path(o.csv_path, "--csv", v); }},
    {Section::output, "", "--bandwidth", nullptr,
     "measure how fast memory can be read, and add two columns: bytes read for each\n"
     "decoded token, and the percentage of the measured rate that this makes",
     [](Options& o, const std::string&) { o.bandwidth = true; return Result<void>(); }},
    {Section::output, "", "--describe", nullptr, "begin the CSV with lines \"# ...\": machine, backend, build, model",
     [](Options& o, const std::string&) { o.describe = true; return Result<void>(); }},
    {Section::output, "", "--json", "FILE", "also write everything as JSON, at the end; measures memory like --bandwidth",
     [](Options& o, const std::string& v) { return set_path(o.json_path, "--json", v); }},
    {Section::output, "", "--dump-frontier-logits-dir", "DIR", "write the logits at each length into this folder, as JSON",
     [](Options& o, const std::string& v) { return set_path(o.logits_folder, "--dump-frontier-logits-dir", v); }},
    {Section::output, "", "--version", nullptr, "show the version",
     [](Options& o, const std::string&) { o.version = true; return Result<void>(); }},

    {Section::refused, "", "--role", nullptr, "", refuse_cluster},
    {Section::refused, "", "--layers", nullptr, "", refuse_cluster},
    {Section::refused, "", "--listen", nullptr, "", refuse_cluster},
    {Section::refused, "", "--coordinator", nullptr, "", refuse_cluster},
    {Section::refused, "", "--dist-prefill-chunk", nullptr, "", refuse_cluster},
    {Section::refused, "", "--dist-prefill-window", nullptr, "", refuse_cluster},
    {Section::refused, "", "--dist-activation-bits", nullptr, "", refuse_cluster},
    {Section::refused, "", "--dist-replay-check", nullptr, "", refuse_cluster},
    {Section::refused, "", "--ssd-streaming", nullptr, "", refuse_streaming},
    {Section::refused, "", "--ssd-streaming-cold", nullptr, "", refuse_streaming},
    {Section::refused, "", "--ssd-streaming-cache-experts", nullptr, "", refuse_streaming},
    {Section::refused, "", "--ssd-streaming-preload-experts", nullptr, "", refuse_streaming},
});
// clang-format on

constexpr auto rows = cli::join_rows(cli::program_rows<Options, Section>, own_rows);

Result<void> check_combinations(const Options& o) {
  const FrontierSteps& steps = o.steps;
  if (!o.raw_prompt_path.empty() && !o.chat_prompt_path.empty()) {
    return fail(ErrorCode::invalid_argument, "give --prompt-file or --chat-prompt-file, not both");
  }
  if (steps.first > steps.last) {
    return fail(ErrorCode::invalid_argument, "--ctx-start {} is larger than --ctx-max {}", steps.first,
                steps.last);
  }
  if (steps.multiplier == 1.0 && steps.increment == 0) {
    return fail(ErrorCode::invalid_argument, "--step-incr 0 never advances; give it or --step-mul more");
  }
  if (steps.last + o.gen_tokens + 1 > largest_integer) {
    return fail(ErrorCode::invalid_argument, "--ctx-max {} and --gen-tokens {} are more than {} tokens",
                steps.last, o.gen_tokens, largest_integer - 1);
  }
  if (o.context_tokens != 0 && o.context_tokens <= steps.last + o.gen_tokens) {
    return fail(ErrorCode::invalid_argument,
                "--ctx-alloc {} is too small: --ctx-max {} and --gen-tokens {} need {} at least",
                o.context_tokens, steps.last, o.gen_tokens, steps.last + o.gen_tokens + 1);
  }
  return {};
}

}  // namespace

std::span<const Row> option_table() {
  return rows;
}

Result<Options> parse_options(std::span<const char* const> arguments) {
  Options options;
  DS4_TRY(cli::read_arguments(option_table(), arguments, options));
  if (options.help || options.version) return options;
  DS4_TRY(check_combinations(options));
  if (options.context_tokens == 0) options.context_tokens = options.steps.last + options.gen_tokens + 1;
  return options;
}

}  // namespace ds4::bench
