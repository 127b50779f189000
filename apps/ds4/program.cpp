#include "program.hpp"

#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "common/console.hpp"
#include "common/ending.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "common/model_search.hpp"
#include "common/visible_text.hpp"
#include "diagnostics.hpp"
#include "ds4/engine.hpp"
#include "ds4/version.hpp"
#include "format/gguf_files.hpp"
#include "generate.hpp"
#include "importance.hpp"
#include "options.hpp"
#include "prompt.hpp"
#include "repl.hpp"
#include "saved_conversation.hpp"
#include "tool_file.hpp"

namespace ds4::cli {
namespace {

/// failure(), with the option that helps.
int run_failure(const Error& error) {
  if (error.code != ErrorCode::context_full) return failure(error);
  return failure({error.code, error.message + "; --ctx N makes it larger"});
}

int usage_failure(const Error& error) {
  say_error(error.message);
  return exit_usage;
}

/// Ends a run that wrote to standard output.
int output_status(const Writer& output) {
  if (!output.failed()) return exit_success;
  if (!output.pipe_closed()) say_error(output.error("standard output").message);
  return exit_failure;
}

bool wants_dump(const Options& o) {
  return !o.dump_logits_path.empty() || !o.dump_logprobs_path.empty();
}

int run_dumps(const Options& options, const std::string& path, const Engine& engine, Session& session,
              std::span<const Token> prompt) {
  if (!options.dump_logits_path.empty()) {
    if (const auto done = dump_logits(options, path, engine, session, prompt); !done)
      return run_failure(done.error());
  }
  if (!options.dump_logprobs_path.empty()) {
    if (const auto done = dump_logprobs(options, engine, session, prompt); !done)
      return run_failure(done.error());
  }
  return exit_success;
}

/// Evaluates the prompt and streams the reply.
Result<Reply> answer(const Options& options, const Engine& engine, Session& session,
                     std::span<const Token> prompt, Writer& output) {
  Rng rng(choose_seed(options.seed));
  const bool thinking = prompt.back() == engine.tokenizer().special().think_open;
  return generate_reply(engine, session, prompt, {options.sampling, options.max_tokens, thinking}, rng,
                        output);
}

/// Says how the reply ended, and gives the exit status.
int report(const Result<Reply>& reply, const Session& session, const Writer& output) {
  if (!reply) return run_failure(reply.error());
  if (reply->stop == StopReason::output_failed) return output_status(output);
  if (reply->stop == StopReason::context_full) {
    warn(fmt::format("the context of {} tokens is full; --ctx N makes it larger", session.context()));
  }
  if (reply->stop == StopReason::interrupted) {
    // The terminal shows ^C in the middle of a line.
    if (reply->tokens.empty() && isatty(STDERR_FILENO) == 1) Writer(STDERR_FILENO).write("\n");
    return exit_interrupted;
  }
  say_speed(*reply);
  return exit_success;
}

/// One message of a conversation that is kept in a file, which stays as it is if there is no answer.
int run_one_turn(const Options& options, const Engine& engine, Session& session, const std::string& message,
                 const std::vector<std::string>& tool_schemas) {
  const Tokenizer& tokenizer = engine.tokenizer();
  auto saved = load_if_there(options.session_path, engine, options);
  if (!saved) return run_failure(saved.error());
  Session& present = saved->session ? *saved->session : session;
  const std::vector<Token> preamble = preamble_tokens(tokenizer, options.system, tool_schemas, options.think);
  std::vector<Token>& turns = saved->turns;
  const std::vector<Token> turn = message_tokens(tokenizer, message, options.think);
  turns.insert(turns.end(), turn.begin(), turn.end());
  std::vector<Token> prompt = preamble;
  prompt.insert(prompt.end(), turns.begin(), turns.end());

  Writer output(STDOUT_FILENO);
  const auto reply = answer(options, engine, present, prompt, output);
  const int status = report(reply, present, output);
  if (!reply || reply->tokens.empty()) return status;
  turns.insert(turns.end(), reply->tokens.begin(), reply->tokens.end());
  turns.push_back(tokenizer.special().eos);
  clear_interrupt();
  const auto kept = save_conversation(options.session_path, engine, present, preamble, turns,
                                      state_numerics(engine, options));
  return kept ? status : run_failure(kept.error());
}

/// The parts of a run that need the model's state.
int run_with_engine(const Options& options, const std::string& path, const std::optional<std::string>& prompt,
                    const std::vector<std::string>& tool_schemas) {
  const bool scores = !options.perplexity_path.empty();
  Result<std::string> text = std::string();
  if (scores) text = read_file(options.perplexity_path);
  if (!text) return run_failure(text.error());
  const auto engine = open_engine(options, path);
  if (!engine) return run_failure(engine.error());
  if (engine->info().steering) say(steering_sentence(*engine, options));
  if (!prompt && !scores) return run_repl(options, *engine, tool_schemas);

  auto session = engine->create_session(options.context_tokens);
  if (!session) return run_failure(session.error());
  prepare_session(*session, *engine, options);
  set_interrupt_mode(OnInterrupt::stop_then_exit);
  if (scores) {
    const auto line = measure_perplexity(options, *text, *engine, *session);
    return line ? print(*line) : run_failure(line.error());
  }
  if (!options.session_path.empty()) {
    say(context_sentence(*engine, options.context_tokens));
    say_if_context_is_small(options.think, options.context_tokens);
    return run_one_turn(options, *engine, *session, *prompt, tool_schemas);
  }
  const Tokenizer& tokenizer = engine->tokenizer();
  std::vector<Token> tokens;
  if (options.raw_prompt) {
    tokens = tokenizer.encode_rendered(*prompt);
  } else {
    tokens = preamble_tokens(tokenizer, options.system, tool_schemas, options.think);
    const std::vector<Token> message = message_tokens(tokenizer, *prompt, options.think);
    tokens.insert(tokens.end(), message.begin(), message.end());
  }
  say(context_sentence(*engine, options.context_tokens));
  if (!options.raw_prompt) say_if_context_is_small(options.think, options.context_tokens);
  if (wants_dump(options)) return run_dumps(options, path, *engine, *session, tokens);
  Writer output(STDOUT_FILENO);
  return report(answer(options, *engine, *session, tokens, output), *session, output);
}

int run_importance(const Options& options, const std::string& path) {
  const auto dataset = read_file(options.imatrix_dataset_path);
  if (!dataset) return run_failure(dataset.error());
  const auto engine = open_engine(options, path);
  if (!engine) return run_failure(engine.error());
  set_interrupt_mode(OnInterrupt::stop);  // the temporary file must not stay
  say(context_sentence(*engine, options.context_tokens));
  const auto line = collect_importance(options, *dataset, *engine);
  return line ? print(*line) : run_failure(line.error());
}

Result<std::vector<std::string>> read_tools(const Options& options) {
  if (options.tools_path.empty()) return std::vector<std::string>();
  DS4_ASSIGN(const std::string text, read_file(options.tools_path));
  return parse_tools(text, options.tools_path);
}

/// What is written must not take the place of what is read.
Result<void> check_outputs(const Options& options, const std::string& model_path) {
  std::vector<std::string> inputs = format::gguf_files(model_path);
  inputs.insert(inputs.end(), {options.mtp_path, options.steering_path, options.imatrix_dataset_path,
                               options.tools_path, options.perplexity_path});
  if (options.prompt_source == PromptSource::file) inputs.push_back(options.prompt);
  for (const std::string& path :
       {options.imatrix_out_path, options.dump_logits_path, options.dump_logprobs_path})
    DS4_TRY(check_not_read(path, inputs));
  return {};
}

int run(const Options& options) {
  std::optional<std::string> prompt;
  const bool describes = options.inspect || options.memory;
  const bool collects = !options.imatrix_dataset_path.empty();
  const bool needs_prompt = options.dump_tokens || (wants_dump(options) && !describes);
  if (options.dump_tokens || (!describes && !collects && options.perplexity_path.empty())) {
    auto read = read_prompt(options);
    if (!read) return usage_failure(read.error());
    prompt = std::move(*read);
  }
  if (needs_prompt && !prompt) {
    return usage_failure(
        Error{ErrorCode::invalid_argument, "this needs a prompt: give one with -p or --prompt-file"});
  }
  const auto tools = read_tools(options);
  if (!tools) return usage_failure(tools.error());
  const auto model = find_model(options.model_path);
  if (!model) return run_failure(model.error());
  if (model->bundled)
    say(fmt::format("using the small bundled model {}; name another one with -m", model->path));

  if (const auto fine = check_outputs(options, model->path); !fine) return run_failure(fine.error());
  if (collects) return run_importance(options, model->path);
  if (options.dump_tokens) {
    const auto text = dump_tokens(model->path, *prompt);
    if (!text) return run_failure(text.error());
    // Vocabulary strings come from the file.
    return print(isatty(STDOUT_FILENO) == 1 ? visible(*text, "\n") : *text);
  }
  if (options.inspect) {
    const auto text = describe_model(model->path);
    return text ? print(*text) : run_failure(text.error());
  }
  if (options.memory) {
    const auto text = describe_memory(options, model->path, options.context_tokens);
    return text ? print(*text) : run_failure(text.error());
  }
  return run_with_engine(options, model->path, prompt, *tools);
}

}  // namespace

int run_program(std::span<const char* const> arguments) {
  install_signal_handlers();
  const auto options = parse_options(arguments);
  if (!options) {
    say_error(options.error().message);
    Writer(STDERR_FILENO).write(short_help());
    return exit_usage;
  }
  if (options->help) return print(help_page(options->help_topic, isatty(STDOUT_FILENO) == 1));
  if (options->version) return print(fmt::format("ds4 {}\n", version));
  return run(*options);
}

}  // namespace ds4::cli
