#include "repl.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "generate.hpp"
#include "line_editor.hpp"
#include "prompt.hpp"
#include "saved_conversation.hpp"

namespace ds4::cli {
namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

/// No shell has seen the name.
std::string expanded(const std::string& path) {
  const char* home = std::getenv("HOME");
  const bool begins_at_home = path == "~" || path.starts_with("~/");
  return begins_at_home && home != nullptr && *home != '\0' ? home + path.substr(1) : path;
}

const char* mode_name(ThinkMode mode) {
  return mode == ThinkMode::none ? "none" : mode == ThinkMode::high ? "high" : "max";
}

bool takes_nothing(std::string_view command) {
  constexpr std::string_view commands[] = {"/help", "/think", "/think-max", "/nothink", "/quit", "/exit"};
  return std::find(std::begin(commands), std::end(commands), command) != std::end(commands);
}

enum class Next { read, leave, output_lost };

/// The conversation is kept as tokens, exactly as they were sampled, so that every turn continues the same
/// state.
class Conversation {
 public:
  Conversation(const Options& options, const Engine& engine, const std::vector<std::string>& tool_schemas)
      : options_(options), engine_(engine), tool_schemas_(tool_schemas), rng_(choose_seed(options.seed)) {}

  Result<void> open(uint64_t context_tokens) {
    session_.reset();  // before the new one, so that both are never in memory together
    DS4_ASSIGN(session_, engine_.create_session(context_tokens));
    prepare_session(*session_, engine_, options_);
    options_.context_tokens = context_tokens;
    steered_anew_ = false;
    say(context_sentence(engine_, context_tokens));
    say_if_context_is_small(options_.think, context_tokens);
    return {};
  }

  /// Goes on with a conversation; the present one stays if that fails.
  Result<void> load(const std::string& path);
  Result<void> save(const std::string& path);

  Next send(const std::string& message);
  Next command(const std::string& line);

 private:
  void set_think(ThinkMode mode) {
    options_.think = mode;
    say(fmt::format("thinking: {}", mode_name(mode)));
    say_if_context_is_small(mode, options_.context_tokens);
  }
  std::vector<Token> preamble() const {
    return preamble_tokens(engine_.tokenizer(), options_.system, tool_schemas_, options_.think);
  }
  void change_context(const std::string& argument);
  void steer(const std::string& argument);

  Options options_;
  const Engine& engine_;
  const std::vector<std::string>& tool_schemas_;
  Rng rng_;
  std::optional<Session> session_;
  bool steered_anew_ = false;  // the state is the work of several scales
  std::vector<Token> turns_;   // everything after the preamble, which depends on the mode
  Writer output_{STDOUT_FILENO};
};

Next Conversation::send(const std::string& message) {
  const Tokenizer& tokenizer = engine_.tokenizer();
  std::vector<Token> turn = message_tokens(tokenizer, message, options_.think);
  std::vector<Token> transcript = preamble();
  transcript.insert(transcript.end(), turns_.begin(), turns_.end());
  transcript.insert(transcript.end(), turn.begin(), turn.end());

  const ReplyOptions reply_options{options_.sampling, options_.max_tokens, options_.think != ThinkMode::none};
  clear_interrupt();
  const auto reply = generate_reply(engine_, *session_, transcript, reply_options, rng_, output_);
  if (!reply) {
    const bool too_long = reply.error().code == ErrorCode::context_full;
    say_error(reply.error().message + (too_long ? "; /ctx N makes it larger" : ""));
    return Next::read;
  }
  if (reply->stop == StopReason::output_failed) {
    if (!output_.pipe_closed()) say_error(output_.error("standard output").message);
    return Next::output_lost;
  }
  if (reply->stop == StopReason::interrupted) {
    warn(reply->tokens.empty() ? "stopped; the message was taken back" : "stopped");
    if (reply->tokens.empty()) return Next::read;
  }
  turns_.insert(turns_.end(), turn.begin(), turn.end());
  turns_.insert(turns_.end(), reply->tokens.begin(), reply->tokens.end());
  turns_.push_back(tokenizer.special().eos);
  if (reply->stop == StopReason::context_full) {
    warn(fmt::format("the context of {} tokens is full; /ctx N makes it larger", session_->context()));
  }
  say_speed(*reply);
  // Now, not at the end: windows get closed and machines go off.
  if (!options_.session_path.empty()) {
    clear_interrupt();
    if (const auto saved = save(options_.session_path); !saved) say_error(saved.error().message);
  }
  return Next::read;
}

Result<void> Conversation::load(const std::string& path) {
  DS4_ASSIGN(SavedConversation saved, load_conversation(path, engine_, options_));
  turns_ = std::move(saved.turns);
  steered_anew_ = false;
  if (saved.session) {
    session_ = std::move(saved.session);
  } else {
    session_->reset();
  }
  return {};
}

Result<void> Conversation::save(const std::string& path) {
  // A state that was steered in several ways is never what another run would compute.
  const std::string numerics = steered_anew_ ? "steered anew" : state_numerics(engine_, options_);
  return save_conversation(path, engine_, *session_, preamble(), turns_, numerics);
}

void Conversation::change_context(const std::string& argument) {
  const auto wanted = parse_integer("/ctx", argument, 1, 2147483647);
  if (!wanted) return say_error(wanted.error().message);
  const uint64_t before = options_.context_tokens;
  const auto opened = open(*wanted);
  if (opened) return;
  say_error(opened.error().message);
  if (const auto reopened = open(before); !reopened) say_error(reopened.error().message);
}

void Conversation::steer(const std::string& argument) {
  if (!engine_.info().steering)
    return say_error("there is no direction to steer by: start with --dir-steering-file");
  float scale = 0;
  if (const auto set = set_number(scale, "/steer", argument, -100, 100); !set)
    return say_error(set.error().message);
  const bool attention = engine_.info().steering_component == Component::attention;
  (attention ? options_.steering_attention : options_.steering_feed_forward) = scale;
  session_->set_steering(steering_scales(options_).value_or({}));
  steered_anew_ = steered_anew_ || session_->position() > 0;
  say(steering_sentence(engine_, options_));
}

Next Conversation::command(const std::string& line) {
  const size_t space = line.find_first_of(" \t\n");
  const std::string name = line.substr(0, space);
  const std::string argument = space == std::string::npos ? "" : trimmed(line.substr(space));
  if (!argument.empty() && takes_nothing(name)) {
    say_error(fmt::format("{} takes no argument", name));
    return Next::read;
  }
  if (name == "/quit" || name == "/exit") return Next::leave;
  if (name == "/help") {
    Writer(STDERR_FILENO).write(command_list());
  } else if (name == "/think") {
    set_think(ThinkMode::high);
  } else if (name == "/think-max") {
    set_think(ThinkMode::max);
  } else if (name == "/nothink") {
    set_think(ThinkMode::none);
  } else if (name == "/ctx") {
    change_context(argument);
  } else if (name == "/steer") {
    steer(argument);
  } else if (name == "/save" || name == "/load") {
    if (argument.empty()) {
      say_error(fmt::format("{} needs the name of a file", name));
      return Next::read;
    }
    clear_interrupt();
    const std::string path = expanded(argument);
    const auto done = name == "/save" ? save(path) : load(path);
    if (!done) {
      say_error(done.error().message);
    } else if (name == "/save") {
      say(fmt::format("saved {} tokens in {}", session_->position(), path));
    }
  } else if (name == "/read") {
    if (argument.empty()) {
      say_error("/read needs the name of a file");
      return Next::read;
    }
    const auto text = read_file(expanded(argument));
    if (!text) {
      say_error(text.error().message);
    } else if (text->empty()) {
      say_error(fmt::format("{} is empty", argument));
    } else {
      return send(*text);
    }
  } else {
    say_error(fmt::format("unknown command {}; /help lists the commands", name));
  }
  return Next::read;
}

/// Until the user leaves or nothing can be shown any more.
Next converse(Conversation& conversation) {
  LineEditor editor("ds4> ", History::default_path());
  while (true) {
    clear_interrupt();
    const ReadResult read = editor.read();
    if (read.status == ReadStatus::discarded) continue;
    if (read.status == ReadStatus::end_of_input) return Next::leave;
    const std::string message = trimmed(read.text);
    if (message.empty()) continue;
    editor.remember(message);
    const Next next = message[0] == '/' ? conversation.command(message) : conversation.send(message);
    if (next != Next::read) return next;
  }
}

}  // namespace

int run_repl(const Options& options, const Engine& engine, const std::vector<std::string>& tool_schemas) {
  Conversation conversation(options, engine, tool_schemas);
  if (const auto opened = conversation.open(options.context_tokens); !opened) {
    say_error(opened.error().message);
    return exit_failure;
  }
  const std::string& kept = options.session_path;
  if (!kept.empty() && ::access(kept.c_str(), F_OK) == 0) {
    if (const auto loaded = conversation.load(kept); !loaded) {
      say_error(loaded.error().message);
      return exit_failure;
    }
  }
  set_interrupt_mode(OnInterrupt::stop);
  Writer(STDERR_FILENO).write(command_list());
  return converse(conversation) == Next::output_lost ? exit_failure : exit_success;
}

void say_if_context_is_small(ThinkMode think, uint64_t context_tokens) {
  if (think != ThinkMode::max || context_tokens >= think_max_context_tokens) return;
  warn(fmt::format("the longest reasoning effort is made for a context of {} tokens or more; this one has {}",
                   think_max_context_tokens, context_tokens));
}

uint64_t choose_seed(uint64_t wanted) {
  if (wanted != 0) return wanted;
  const auto now = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return now ^ (static_cast<uint64_t>(::getpid()) << 32);
}

}  // namespace ds4::cli
