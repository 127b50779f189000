// Asks the cases of a run one after the other (docs/eval.md §4).
#pragma once

#include <optional>

#include "ds4/engine.hpp"
#include "options.hpp"
#include "run_state.hpp"
#include "trace.hpp"

namespace ds4::eval {

/// The context that the cases need: the largest prompt and what may be generated after it.
struct ContextNeed {
  uint64_t tokens = 0;
  uint64_t largest_prompt = 0;
  size_t case_number = 0;  // of that prompt, from 1
  uint64_t budget = 0;     // of that case
};
/// Errors: invalid_argument if it is above most_tokens.
Result<ContextNeed> context_need(const Options& options, const std::vector<Item>& items,
                                 const Tokenizer& tokenizer);

/// What the longest reasoning effort is made for.
inline constexpr uint64_t think_max_context_tokens = 393216;

/// How many tokens may be generated for an item.
uint64_t token_limit(const Options& options, const Item& item);

class Runner {
 public:
  /// Precondition: all arguments outlive the runner; `trace` may be null.
  Runner(const Options& options, const Engine& engine, Session& session, RunState& state, Display& display,
         TraceFile* trace);

  /// Until all cases were asked or the user stops. Errors: the trace cannot be written.
  Result<void> run();

 private:
  enum class End { done, stopped, switched };
  std::optional<size_t> next_pending(size_t after) const;
  Result<End> run_case(size_t index, uint64_t limit);
  /// Evaluates the prompt and generates; false if the user wants something else.
  Result<bool> answer(CaseState& c, const std::vector<Token>& prompt);
  Result<bool> generate(CaseState& c, ThinkWatch& watch);
  void add_token(CaseState& c, ThinkWatch& watch, Token token);
  bool interrupted_by_user();
  Result<void> record(const CaseState& c, std::string_view status);

  const Options& options_;
  const Engine& engine_;
  Session& session_;
  RunState& state_;
  Display& display_;
  TraceFile* trace_;
  Rng rng_;
  Request request_;
};

}  // namespace ds4::eval
