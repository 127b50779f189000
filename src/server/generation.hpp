// What a client asks for and what it is told, whatever API it speaks. The dialects (api/) turn bodies into a
// GenerationRequest and events into bytes; the scheduler turns a request into events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/sampling.hpp"

namespace ds4::server {

/// A tool that the model may call.
struct Tool {
  std::string name;        // as the model sees it
  std::string schema;      // raw JSON text shown to the model
  std::string parameters;  // JSON schema of the arguments, raw text; empty if there is none
};

enum class ToolChoice {
  none,       // tools are not offered
  automatic,  // the model decides
  required,   // at least one call
  named,      // a call of `tool_choice_name`
};

/// What the answer must look like.
struct ResponseFormat {
  enum class Kind { text, json_object, json_schema } kind = Kind::text;
  std::string schema;                     // json_schema: raw JSON text
  bool strict = false;                    // json_schema: every property is written
  std::string field = "response_format";  // of the request, for errors
};

struct Thinking {
  ThinkMode mode = ThinkMode::high;
  std::optional<size_t> budget_tokens;  // reasoning is brought to an end after this many tokens
};

struct GenerationRequest {
  enum class Kind {
    chat,        // `messages`
    completion,  // `prompt`, answered without splitting off reasoning
    infill,      // the text between `prompt` and `suffix`
  };
  Kind kind = Kind::chat;
  std::string model;  // as the client called it

  std::vector<ChatMessage> messages;
  std::string prompt, suffix;
  std::vector<Tool> tools;
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_choice_name;
  bool parallel_tool_calls = true;
  std::string tool_id_prefix = "call_";
  ResponseFormat format;
  Thinking thinking;

  SamplingParams sampling;
  std::optional<uint64_t> seed;      // of the first choice; none: different every time
  std::optional<size_t> max_tokens;  // none: the server's default
  std::vector<std::string> stop;     // not empty strings; matched on the visible answer
  size_t choices = 1;                // answers to the same prompt
  bool logprobs = false;
  size_t top_logprobs = 0;  // alternatives per token, 0 to 20

  /// Names the conversation, if the client does (prompt_cache_key, session or user id); a hint only.
  std::string conversation;
  /// A short request beside a conversation (title, infill): takes no session away from one.
  bool side = false;
  std::string body;     // as received, for the trace
  bool stream = false;  // how the client wants to be told, for the trace
};

/// Why a request cannot be answered, or an answer ended early.
struct RequestError {
  int status = 400;                            // HTTP
  std::string type = "invalid_request_error";  // in the words of OpenAI; dialects translate
  std::string message;                         // one sentence
  std::string param;                           // the field, if it is one
  std::string code;                            // "context_length_exceeded", ...; may be empty
  size_t prompt_tokens = 0, context = 0;       // context_length_exceeded only
};

struct Usage {
  size_t prompt_tokens = 0;
  size_t cached_tokens = 0;      // of the prompt, not computed again
  size_t completion_tokens = 0;  // all that were generated, without EOS
  size_t reasoning_tokens = 0;   // of those, inside reasoning
};

struct TokenAlternative {
  std::string bytes;
  float logprob = 0;
};
/// One generated token, if log-probabilities were asked for.
struct ScoredToken {
  std::string bytes;  // may be a part of a UTF-8 character
  float logprob = 0;
  std::vector<TokenAlternative> top;  // best first
};

enum class FinishReason { stop, length, tool_calls, error };

/// What happens to a request, in order: one progress event if it has to wait, one started, any number of
/// progress events before the first piece of text, pieces, and one finished per choice; then one done. Or
/// failed, at any time, and nothing after it.
struct GenerationEvent {
  enum class Kind {
    started,   // taken up: `usage` has the prompt's tokens, and those not computed again
    progress,  // the prompt is being evaluated: `done` of `total` tokens; 0 of 0 while it waits, with `usage`
    reasoning,       // `text`
    content,         // `text`
    call_begin,      // `call`, `id`, and `text` is the tool's name
    call_arguments,  // `call`, `text`: a piece of the compact JSON object
    call_end,        // `call`, `text`: the whole object
    call_dropped,    // `call`: was begun, but cannot be read to its end; it does not count
    finished,        // of a choice: `finish`, `stop_sequence`, `error` if it is FinishReason::error
    done,            // of the request: `usage` over all choices
    failed,          // `error`
  };
  Kind kind = Kind::done;
  size_t choice = 0;
  size_t call = 0;
  std::string id;
  std::string text;
  std::vector<ScoredToken> scores;  // of the tokens whose text ends in this piece; reasoning and content only
  size_t done = 0, total = 0;
  FinishReason finish = FinishReason::stop;
  std::optional<std::string> stop_sequence;  // the stop string that ended the answer
  bool reasoning_complete = true;            // finished: reasoning was closed, or there was none
  Usage usage;
  RequestError error;
};

/// Receives the events of one request, from the scheduler's thread; must not block.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const GenerationEvent& event) = 0;
  /// True once nobody listens any more; the request is then given up, and what was computed is kept.
  virtual bool gone() const = 0;
};

/// How the names of reasoning efforts map to what the model was trained with, which differs between
/// checkpoints and cannot be read from a file (docs/chat.md).
enum class EffortProfile { preview, release_0731 };

/// What the programs and the model lists tell about the server.
struct ServerInfo {
  std::string model_id;    // "deepseek-v4-flash"
  std::string model_name;  // "DeepSeek V4 Flash"
  uint64_t context_tokens = 0;
  size_t default_max_tokens = 0;
  int64_t created = 0;  // seconds since 1970
  bool infill = false;  // the vocabulary has the tokens for it
  EffortProfile effort_profile = EffortProfile::preview;
};

}  // namespace ds4::server
