#include "options.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

using cli::set_integer;
using cli::set_number;
using cli::set_path;

Result<void> refuse_cluster(Options&, const std::string&) {
  return fail(ErrorCode::unsupported,
              "this build runs on one machine; it has no --role or other options of a cluster");
}

Result<void> set_sequence(Options& o, const std::string& text) {
  o.case_sequence.clear();
  for (size_t begin = 0;;) {
    const size_t comma = std::min(text.size(), text.find(',', begin));
    DS4_ASSIGN(const uint64_t number, cli::parse_integer("--case-sequence", text.substr(begin, comma - begin),
                                                         1, cli::largest_integer));
    o.case_sequence.push_back(number);
    if (comma == text.size()) return {};
    begin = comma + 1;
  }
}

// clang-format off: a table reads best as one
constexpr auto own_rows = std::to_array<Row>({
    {Section::cases, "", "--suite", "NAME", "core, nano or all [core]",
     [](Options& o, const std::string& v) { o.suite = v; return Result<void>(); }},
    {Section::cases, "", "--suite-file", "FILE", "questions of a file instead: JSON lines of ours, GPQA, SuperGPQA or AIME",
     [](Options& o, const std::string& v) { return set_path(o.suite_path, "--suite-file", v); }},
    {Section::cases, "", "--source", "NAME", "only questions of this source, in any case of letters",
     [](Options& o, const std::string& v) { o.source = v; return Result<void>(); }},
    {Section::cases, "", "--domain", "NAME", "only questions of this domain, in any case of letters",
     [](Options& o, const std::string& v) { o.domain = v; return Result<void>(); }},
    {Section::cases, "", "--case-id", "ID", "only the question with this id",
     [](Options& o, const std::string& v) { o.case_id = v; return Result<void>(); }},
    {Section::cases, "", "--questions", "N", "only the first N of them",
     [](Options& o, const std::string& v) { return set_integer(o.questions, "--questions", v); }},
    {Section::cases, "", "--case-sequence", "LIST", "these of them in this order: numbers from 1, separated by commas",
     [](Options& o, const std::string& v) { return set_sequence(o, v); }},
    {Section::cases, "", "--list-cases", nullptr, "list the questions as tab-separated values and end",
     [](Options& o, const std::string&) { o.list_cases = true; return Result<void>(); }},
    {Section::cases, "", "--validate-cases", nullptr, "check the questions and end",
     [](Options& o, const std::string&) { o.validate_cases = true; return Result<void>(); }},

    {Section::evaluation, "-c", "--ctx", "N", "context size in tokens, at most 1000000 [what the questions need]",
     [](Options& o, const std::string& v) { return set_integer(o.context_tokens, "--ctx", v, 1, most_tokens); }},
    {Section::evaluation, "-n", "--tokens", "N",
     "generate at most N tokens for a question, at most 1000000 [16000, or what the\n"
     "question says]",
     [](Options& o, const std::string& v) {
       o.max_tokens_given = true;
       return set_integer(o.max_tokens, "--tokens", v, 1, most_tokens);
     }},
    {Section::evaluation, "", "--think", nullptr, "reason before answering (default)",
     [](Options& o, const std::string&) { o.think = ThinkMode::high; return Result<void>(); }},
    {Section::evaluation, "", "--think-max", nullptr, "reason with the longest effort",
     [](Options& o, const std::string&) { o.think = ThinkMode::max; return Result<void>(); }},
    {Section::evaluation, "", "--nothink", nullptr, "answer directly",
     [](Options& o, const std::string&) { o.think = ThinkMode::none; return Result<void>(); }},
    {Section::evaluation, "", "--soft-limit-reply-budget", "N",
     "with N tokens left, end reasoning where the model nearly would [1024]",
     [](Options& o, const std::string& v) { return set_integer(o.budget.soft_tokens, "--soft-limit-reply-budget", v); }},
    {Section::evaluation, "", "--hard-limit-reply-budget", "N", "with N tokens left, end reasoning [512]",
     [](Options& o, const std::string& v) { return set_integer(o.budget.hard_tokens, "--hard-limit-reply-budget", v); }},
    {Section::evaluation, "", "--soft-limit-think-close-rank", "N",
     "\"nearly\": the end of reasoning is among the N likeliest tokens [3]",
     [](Options& o, const std::string& v) { return set_integer(o.budget.close_rank, "--soft-limit-think-close-rank", v); }},
    {Section::evaluation, "", "--retry-incomplete", nullptr,
     "ask once more, with twice the tokens, where the final answer line is missing",
     [](Options& o, const std::string&) { o.retry_incomplete = true; return Result<void>(); }},

    {Section::sampling, "", "--temp", "F", "temperature, 0 to 100 [0]; 0 always takes the most likely token",
     [](Options& o, const std::string& v) { return set_number(o.sampling.temperature, "--temp", v, 0, 100); }},
    {Section::sampling, "", "--top-p", "F", "smallest set of tokens with this probability, 0 to 1 [1]; 0 and 1 are off",
     [](Options& o, const std::string& v) { return set_number(o.sampling.top_p, "--top-p", v, 0, 1); }},
    {Section::sampling, "", "--min-p", "F", "tokens at least F times as likely as the best one, 0 to 1 [0.05]",
     [](Options& o, const std::string& v) { return set_number(o.sampling.min_p, "--min-p", v, 0, 1); }},
    {Section::sampling, "", "--seed", "N", "seed of the random numbers, not 0 [from the clock]",
     [](Options& o, const std::string& v) {
       return set_integer(o.seed, "--seed", v, 1, std::numeric_limits<uint64_t>::max());
     }},

    {Section::output, "", "--plain", nullptr, "no split screen: text line by line, as without a terminal",
     [](Options& o, const std::string&) { o.plain = true; return Result<void>(); }},
    {Section::output, "", "--pause-ms", "N", "show each result for N ms on the split screen, 0 to 600000 [350]",
     [](Options& o, const std::string& v) { return set_integer(o.pause_ms, "--pause-ms", v, 0, 600000); }},
    {Section::output, "", "--trace", "FILE", "write prompts, replies and verdicts into this file",
     [](Options& o, const std::string& v) { return set_path(o.trace_path, "--trace", v); }},
    {Section::output, "", "--baseline", "FILE",
     "compare with the trace of an earlier run: verdict, answer and numbers of tokens.\n"
     "The exit status tells whether they are the same, not whether all passed",
     [](Options& o, const std::string& v) { return set_path(o.baseline_path, "--baseline", v); }},
    {Section::output, "", "--regrade-trace", "FILE", "grade the replies of a trace again, without a model",
     [](Options& o, const std::string& v) { return set_path(o.regrade_path, "--regrade-trace", v); }},
    {Section::output, "", "--self-test-extractors", nullptr, "check how answers are found and graded, without a model",
     [](Options& o, const std::string&) { o.self_test = true; return Result<void>(); }},
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
});
// clang-format on

constexpr auto rows =
    cli::join_rows(cli::program_rows<Options, Section>, cli::drafter_rows<Options, Section>, own_rows);

Result<void> check_combinations(const Options& o) {
  if (o.questions > 0 && !o.case_sequence.empty()) {
    return fail(ErrorCode::invalid_argument, "give --questions or --case-sequence, not both");
  }
  const int tasks = (o.regrade_path.empty() ? 0 : 1) + (o.list_cases ? 1 : 0) + (o.validate_cases ? 1 : 0) +
                    (o.self_test ? 1 : 0);
  if (tasks > 1) {
    return fail(ErrorCode::invalid_argument,
                "give one of --list-cases, --validate-cases, --regrade-trace and --self-test-extractors");
  }
  if (!o.needs_model() || o.think == ThinkMode::none) return {};
  if (o.budget.hard_tokens >= o.max_tokens) {
    return fail(ErrorCode::invalid_argument,
                "--hard-limit-reply-budget {} leaves no room to reason in --tokens {}", o.budget.hard_tokens,
                o.max_tokens);
  }
  if (o.budget.soft_tokens < o.budget.hard_tokens) {
    return fail(ErrorCode::invalid_argument,
                "--soft-limit-reply-budget {} is smaller than --hard-limit-reply-budget {}",
                o.budget.soft_tokens, o.budget.hard_tokens);
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
  return options;
}

Result<std::vector<Item>> select_cases(const Options& options, const std::vector<Item>& items) {
  std::vector<Item> selected;
  const auto matches = [](const std::string& wanted, const std::string& value) {
    return wanted.empty() || lower(wanted) == lower(value);
  };
  for (const Item& item : items) {
    if (matches(options.source, item.source) && matches(options.domain, item.domain) &&
        (options.case_id.empty() || options.case_id == item.id)) {
      selected.push_back(item);
    }
  }
  if (selected.empty())
    return fail(ErrorCode::invalid_argument, "no question matches --source, --domain, --case-id");
  if (options.questions > selected.size()) {
    return fail(ErrorCode::invalid_argument, "--questions {}: there are {}", options.questions,
                selected.size());
  }
  if (options.questions > 0) selected.resize(options.questions);
  if (options.case_sequence.empty()) return selected;
  std::vector<Item> sequence;
  for (const uint64_t number : options.case_sequence) {
    if (number > selected.size()) {
      return fail(ErrorCode::invalid_argument, "--case-sequence has {}: there are {} questions", number,
                  selected.size());
    }
    sequence.push_back(selected[number - 1]);
  }
  return sequence;
}

}  // namespace ds4::eval
