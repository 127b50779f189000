#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "ds4/chat.hpp"
#include "text/dsml.hpp"
#include "text/prompt_builder.hpp"
#include "text/special_tokens.hpp"
#include "text/string_edit.hpp"
#include "text/tools_section.hpp"

namespace ds4 {
namespace {

using text::PromptBuilder;

// Protocol text: the model was trained with it, byte for byte.
constexpr std::string_view kMaxEffortPrefix =
    R"text(Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

)text";

constexpr std::string_view kBeyondMaxEffortPrefix =
    R"text(Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

)text";

// In the words of the tools section. No protocol text.
constexpr std::string_view kToolReminder =
    "\n\n<system-reminder>\nTools are called by writing a \"<｜DSML｜tool_calls>\" block, as described under "
    "\"Tools\". If the next step needs a tool, call it in this reply: saying what will be done does not do "
    "it.\n</system-reminder>";

constexpr std::string_view kToolResultOpen = "<tool_result>";
constexpr std::string_view kToolResultClose = "</tool_result>";
constexpr std::string_view kEscapedToolResultClose = "&lt;/tool_result>";

bool is_system(const ChatMessage& message) {
  return message.role == Role::system || message.role == Role::developer;
}

/// The order of the turns. Within each run of tool messages (system messages do not interrupt a run, since
/// they are shown elsewhere) the results follow the calls of the assistant message before them; results of
/// unknown calls keep their order and come last.
std::vector<const ChatMessage*> turns_in_order(const std::vector<ChatMessage>& messages) {
  std::vector<const ChatMessage*> turns;
  for (const ChatMessage& message : messages) {
    if (!is_system(message)) turns.push_back(&message);
  }
  std::map<std::string_view, size_t> call_order;
  for (size_t i = 0; i < turns.size();) {
    if (turns[i]->role == Role::assistant) {
      call_order.clear();
      for (const ToolCall& call : turns[i]->tool_calls) {
        if (!call.id.empty()) call_order.emplace(call.id, call_order.size());
      }
    }
    size_t end = i;
    while (end < turns.size() && turns[end]->role == Role::tool) ++end;
    // Messages lie in one array, so the address settles ties in favour of the earlier one.
    std::sort(turns.begin() + i, turns.begin() + end, [&](const ChatMessage* a, const ChatMessage* b) {
      const auto order = [&](const ChatMessage* result) {
        const auto call = call_order.find(result->tool_call_id);
        return std::pair(call == call_order.end() ? call_order.size() : call->second, result);
      };
      return order(a) < order(b);
    });
    i = std::max(end, i + 1);
  }
  return turns;
}

void append_system_region(PromptBuilder& prompt, const std::vector<ChatMessage>& messages,
                          const std::vector<std::string>& tool_schemas) {
  text::append_tools_section(prompt, tool_schemas);
  bool written = !tool_schemas.empty();
  for (const ChatMessage& message : messages) {
    if (!is_system(message)) continue;
    if (written) prompt.trusted("\n\n");
    prompt.untrusted(message.content);
    written = written || !message.content.empty();
  }
}

/// Writes turns one after the other; what a turn begins with depends on the ones before it.
class TurnWriter {
 public:
  TurnWriter(PromptBuilder& prompt, const ChatOptions& options) : prompt_(prompt), options_(options) {
    if (!options.tool_schemas.empty() && options.tool_reminder) {
      reminder_from_bytes_ = options.tool_reminder->first_bytes;
    }
  }

  void write(const ChatMessage& message, bool keep_reasoning) {
    switch (message.role) {
      case Role::user:
        write_user(message);
        break;
      case Role::tool:
        write_tool_result(message);
        break;
      case Role::assistant:
        write_assistant(message, keep_reasoning);
        break;
      case Role::system:
      case Role::developer:
        break;
    }
  }

  void finish() {
    if (!open_turn_) return;
    end_turn();
    prompt_.trusted(thinking() ? text::kThinkOpen : text::kThinkClose);
  }

  size_t reminders() const { return reminders_; }

 private:
  bool thinking() const { return options_.think != ThinkMode::none; }
  bool merged() const { return options_.tool_results == ToolResultLayout::merged; }

  void write_user(const ChatMessage& message) {
    begin_block(merged() && open_turn_);
    prompt_.untrusted(message.content);
    open_turn_ = true;
    open_results_ = false;
  }

  void write_tool_result(const ChatMessage& message) {
    begin_block(merged() ? open_turn_ : open_results_);
    prompt_.trusted(kToolResultOpen);
    prompt_.untrusted(text::replace_all(message.content, kToolResultClose, kEscapedToolResultClose));
    prompt_.trusted(kToolResultClose);
    open_turn_ = open_results_ = true;
  }

  void begin_block(bool continues_turn) {
    if (!continues_turn) {
      prompt_.trusted(text::kUser);
    } else if (merged()) {
      prompt_.trusted("\n\n");
    }
  }

  /// The assistant's turn begins.
  void end_turn() {
    if (prompt_.size_bytes() >= reminder_from_bytes_) {
      prompt_.trusted(kToolReminder);
      reminder_from_bytes_ = prompt_.size_bytes() + options_.tool_reminder->distance_bytes;
      ++reminders_;
    }
    prompt_.trusted(text::kAssistant);
  }

  void write_assistant(const ChatMessage& message, bool keep_reasoning) {
    const SampledReply* sampled = message.sampled.get();
    if (open_turn_) {
      end_turn();
      if (thinking() && keep_reasoning) {
        prompt_.trusted(text::kThinkOpen);
        if (sampled != nullptr) {
          prompt_.append(sampled->reasoning);
        } else {
          prompt_.untrusted(message.reasoning);
        }
      }
      prompt_.trusted(text::kThinkClose);
    }
    if (sampled != nullptr) {
      prompt_.append(sampled->content);
      prompt_.append(sampled->tool_block);
    } else {
      prompt_.untrusted(message.content);
      text::append_tool_calls(prompt_, message.tool_calls);
    }
    prompt_.trusted(text::kEos);
    open_turn_ = open_results_ = false;
  }

  PromptBuilder& prompt_;
  const ChatOptions& options_;
  size_t reminder_from_bytes_ = SIZE_MAX;
  size_t reminders_ = 0;
  bool open_turn_ = false;     // a user or tool turn waits for its answer
  bool open_results_ = false;  // that turn consists of tool results so far
};

}  // namespace

RenderedPrompt render_chat(const std::vector<ChatMessage>& messages, const ChatOptions& options) {
  PromptBuilder prompt;
  prompt.trusted(text::kBos);
  if (options.think == ThinkMode::max) prompt.trusted(kMaxEffortPrefix);
  if (options.think == ThinkMode::beyond) prompt.trusted(kBeyondMaxEffortPrefix);
  append_system_region(prompt, messages, options.tool_schemas);

  const std::vector<const ChatMessage*> turns = turns_in_order(messages);
  bool tool_context = !options.tool_schemas.empty();
  size_t turns_up_to_last_user = 0;
  for (size_t i = 0; i < turns.size(); ++i) {
    const ChatMessage& message = *turns[i];
    tool_context = tool_context || message.role == Role::tool || !message.tool_calls.empty();
    if (message.role != Role::assistant) turns_up_to_last_user = i + 1;
  }
  TurnWriter writer(prompt, options);
  for (size_t i = 0; i < turns.size(); ++i) {
    // Old reasoning is dropped, unless tools are in play: the model is trained to see what led to its calls.
    writer.write(*turns[i], tool_context || i >= turns_up_to_last_user);
  }
  writer.finish();
  RenderedPrompt rendered = prompt.take();
  rendered.tool_reminders = writer.reminders();
  return rendered;
}

std::string RenderedPrompt::text() const {
  std::string result;
  for (const PromptSpan& span : spans) result += span.text;
  return result;
}

RenderedPrompt RenderedPrompt::suffix(size_t bytes) const {
  RenderedPrompt rest;
  for (const PromptSpan& span : spans) {
    if (bytes < span.text.size()) rest.spans.push_back({span.text.substr(bytes), span.trusted});
    bytes -= std::min(bytes, span.text.size());
  }
  return rest;
}

std::vector<Token> RenderedPrompt::encode(const Tokenizer& tokenizer) const {
  std::vector<Token> tokens;
  std::string segment;  // text since the last special token, across spans
  const auto finish_segment = [&] {
    const std::vector<Token> plain = tokenizer.encode_plain(segment);
    tokens.insert(tokens.end(), plain.begin(), plain.end());
    segment.clear();
  };
  for (const PromptSpan& span : spans) {
    size_t begin = 0;
    while (span.trusted) {
      const text::SpecialMatch match = text::find_special(span.text, begin);
      if (match.spelling == nullptr) break;
      segment.append(span.text, begin, match.position - begin);
      finish_segment();
      tokens.push_back(tokenizer.special().*match.spelling->id);
      begin = match.position + match.spelling->text.size();
    }
    segment.append(span.text, begin);
  }
  finish_segment();
  return tokens;
}

}  // namespace ds4
