// Conversations: rendering messages into a prompt, and reading a reply back (docs/chat.md).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4 {

/// How much the model reasons. Checkpoints differ in what they call the efforts (docs/chat.md).
enum class ThinkMode {
  none,    // answer directly
  high,    // reason, then answer
  max,     // the same, asked for "absolute maximum" effort
  beyond,  // the same, asked for effort "beyond maximum": checkpoints since release 0731
};

/// A tool call of an assistant message. `arguments` is the text of a JSON object.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

/// A piece of a prompt. Special tokens are recognised in trusted (engine-made) pieces only.
struct PromptSpan {
  std::string text;
  bool trusted = false;

  bool operator==(const PromptSpan&) const = default;
};

/// A reply as the model wrote it. The special tokens that it chose are trusted spans, all else is not:
/// written into a prompt again, it gives the bytes and the special tokens that were sampled.
struct SampledReply {
  std::vector<PromptSpan> reasoning;   // without the tags around it
  std::vector<PromptSpan> content;     // up to the block of tool calls
  std::vector<PromptSpan> tool_block;  // with its leading newlines
};

enum class Role { system, developer, user, assistant, tool };

struct ChatMessage {
  Role role = Role::user;
  std::string content;
  std::string reasoning;             // assistant only
  std::vector<ToolCall> tool_calls;  // assistant only
  std::string tool_call_id;          // tool only: which call this answers
  /// Assistant only: written in place of `reasoning`, `content` and `tool_calls`, if it is known.
  std::shared_ptr<const SampledReply> sampled;
};

/// How several tool results of one turn are joined.
enum class ToolResultLayout {
  adjacent,  // results follow each other without a separator (default)
  merged,    // the official encoding: results and user text are blocks of one turn, separated by blank lines
};

/// Long conversations with tools are told again how calls are written, at the end of turns of the user or of
/// results. Where depends on the text before alone: when a conversation goes on, its prompt begins as before.
struct ToolReminder {
  size_t first_bytes = 0;     // of text before the first one, at least
  size_t distance_bytes = 0;  // of text from one to the next, at least
};

struct ChatOptions {
  ThinkMode think = ThinkMode::high;
  std::vector<std::string> tool_schemas;  // raw JSON text of one function each, as the client sent it
  ToolResultLayout tool_results = ToolResultLayout::adjacent;
  std::optional<ToolReminder> tool_reminder;  // only with tools
};

/// A rendered conversation. Adjacent spans of the same kind are joined.
struct RenderedPrompt {
  std::vector<PromptSpan> spans;
  size_t tool_reminders = 0;  // in the text

  std::string text() const;  // for display and cache keys
  /// What follows the first `bytes` bytes of the text.
  RenderedPrompt suffix(size_t bytes) const;
  /// Special tokens are recognised where they lie wholly inside a trusted span. The text between two of them
  /// is tokenised as one, whatever spans it comes from: span borders leave no trace in the ids.
  std::vector<Token> encode(const Tokenizer& tokenizer) const;
};

/// Renders a conversation up to the point where the assistant speaks. Tool results of one turn are put in the
/// order of the calls they answer.
RenderedPrompt render_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options);

/// The text of the tools section for these schemas; empty for none.
std::string render_tools_section(const std::vector<std::string>& tool_schemas);
/// The DSML block of these calls in canonical form, starting with two newlines; empty for none.
std::string render_tool_calls(const std::vector<ToolCall>& calls);

/// Why tool markup of a reply was not taken.
enum class ToolFault {
  none,
  unterminated,         // the block or the call was cut off
  bad_markup,           // tags are wrong, missing or out of place
  invalid_json,         // a value that should be JSON is not
  duplicate_parameter,  // a parameter was given twice
};

/// A finished reply taken apart.
struct ParsedReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  // those that were read to their end; ids are left empty
  std::string tool_block;        // the block's bytes as sampled, with the white space before it, for replay;
                                 // empty if what was sampled is no well-formed block
  bool malformed_tools = false;  // markup could not be read and was left out: see `tool_fault`
  bool repaired_tools = false;   // missing or doubled markup around the calls was made good
  ToolFault tool_fault = ToolFault::none;
  std::string tool_fault_reason;  // one sentence
};

/// Takes apart generated text (without EOS). `think`: the prompt ended with an open reasoning tag.
/// `tools`: tool schemas were offered, so DSML blocks are calls. The text is taken to have ended with EOS.
ParsedReply parse_reply(std::string_view text, bool think, bool tools);

/// Splits a stream of generated text into reasoning and answer. Tags may arrive split at any byte.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(bool think) : in_reasoning_(think), at_start_(think) {}

  struct Piece {
    std::string text;
    bool reasoning = false;
  };
  /// Text that is now certain, in order.
  std::vector<Piece> push(std::string_view text);
  std::vector<Piece> flush();
  bool in_reasoning() const { return in_reasoning_; }

 private:
  std::vector<Piece> drain(bool final);
  std::string pending_;  // bytes that may be the beginning of a tag
  bool in_reasoning_;
  bool at_start_;  // an opening tag is expected and swallowed here
};

}  // namespace ds4
