#include "server/prompt.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/dsml.hpp"
#include "text/json_equal.hpp"
#include "text/prompt_builder.hpp"
#include "text/special_tokens.hpp"

namespace ds4::server {
namespace {

constexpr std::string_view kInfillBegin = "<｜fim▁begin｜>", kInfillHole = "<｜fim▁hole｜>",
                           kInfillEnd = "<｜fim▁end｜>";
// What the completions endpoint puts before a bare prompt.
constexpr std::string_view kCompletionSystem = "You are a helpful assistant";
// For depths: what sampled and rendered tokens of one text have in common.
constexpr size_t bytes_per_token = 4;

std::string_view trimmed_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n\v\f");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

/// Hash of strings and what came before; lengths keep the strings apart.
class TranscriptHash {
 public:
  explicit TranscriptHash(std::string_view start = {}) { add(start); }

  void add(std::string_view text) {
    const uint64_t size = text.size();
    const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
    const std::array<uint64_t, 5> words{state_.low64, state_.high64, size, hash.low64, hash.high64};
    state_ = XXH3_128bits(words.data(), sizeof(words));
  }
  std::string bytes() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, state_);
    return {reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)};
  }

 private:
  XXH128_hash_t state_{0, 0};
};

std::string role_name(Role role) {
  return std::to_string(static_cast<int>(role));
}

/// Adds a message as a client shows it: reasoning is left out, since clients change and drop it, and so are
/// arguments, which they write anew.
void add_message(TranscriptHash& hash, const ChatMessage& message) {
  hash.add(role_name(message.role));
  hash.add(trimmed_end(message.content));
  for (const ToolCall& call : message.tool_calls) hash.add(call.name);
}

std::string reply_key(const TranscriptHash& before, std::string_view kind, std::string_view content) {
  TranscriptHash hash = before;
  hash.add(kind);
  hash.add(trimmed_end(content));
  return "reply:" + hash.bytes();
}

std::string text_of(const std::vector<PromptSpan>& spans) {
  std::string text;
  for (const PromptSpan& span : spans) text += span.text;
  return text;
}

/// From the archive, a reply comes as another object for each of its calls.
bool same_reply(const SampledReply& a, const SampledReply& b) {
  return &a == &b || (a.reasoning == b.reasoning && a.content == b.content && a.tool_block == b.tool_block);
}

/// The one reply that all these calls were part of, if there is one.
std::shared_ptr<const SampledReply> reply_of_calls(const std::vector<ToolCall>& calls,
                                                   SharedReplyMemory& memory) {
  std::shared_ptr<const SampledReply> reply;
  for (const ToolCall& call : calls) {
    const std::shared_ptr<const SampledReply> found = memory.get(call.id);
    if (found == nullptr || (reply != nullptr && !same_reply(*found, *reply))) return nullptr;
    reply = found;
  }
  return reply;
}

/// Whether the client shows the calls that were sampled. A block that had to be repaired was not kept.
bool same_calls(const SampledReply& reply, const std::vector<ToolCall>& calls) {
  if (reply.tool_block.empty()) return calls.empty();
  const ParsedReply sampled = parse_reply(text_of(reply.tool_block), false, true);
  return std::equal(calls.begin(), calls.end(), sampled.tool_calls.begin(), sampled.tool_calls.end(),
                    [](const ToolCall& shown, const ToolCall& written) {
                      return shown.name == written.name &&
                             text::json_equal(shown.arguments, written.arguments);
                    });
}

/// Puts sampled replies to the messages that they belong to, and collects the hash of the transcript.
class Recollection {
 public:
  Recollection(const GenerationRequest& request, SharedReplyMemory& memory, Prompt& prompt)
      : memory_(memory), prompt_(prompt) {
    for (const Tool& tool : request.tools) transcript_.add(tool.schema);
  }

  void visit(ChatMessage& message) {
    if (message.role == Role::assistant) attach(message);
    add_message(transcript_, message);
    if (message.role == Role::user && first_turn_.empty()) first_turn_ = message.content;
    last_ = TranscriptHash(first_turn_);
    add_message(last_, message);
  }

  void finish() { prompt_.transcript = keys(); }

 private:
  void attach(ChatMessage& message) {
    std::shared_ptr<const SampledReply> reply = reply_of_calls(message.tool_calls, memory_);
    if (reply == nullptr && message.tool_calls.empty()) {
      const TranscriptKeys known_as = reply_keys(keys(), message.content);
      reply = memory_.get(known_as.exact);
      if (reply == nullptr) reply = memory_.get(known_as.local);
    }
    if (reply == nullptr) {
      ++prompt_.replies_unknown;
      return;
    }
    ++prompt_.replies_known;
    // The client's words count where they differ.
    const bool other_text = trimmed_end(text_of(reply->content)) != trimmed_end(message.content);
    const bool other_calls = !same_calls(*reply, message.tool_calls);
    if (other_text || other_calls) {
      SampledReply edited = *reply;
      if (other_text) edited.content = {{message.content, false}};
      if (other_calls) {
        prompt_.calls_changed += reply->tool_block.empty() ? 0 : 1;
        text::PromptBuilder calls;
        text::append_tool_calls(calls, message.tool_calls);
        edited.tool_block = calls.take().spans;
      }
      reply = std::make_shared<const SampledReply>(std::move(edited));
    }
    message.sampled = std::move(reply);
  }

  TranscriptKeys keys() const { return {transcript_.bytes(), last_.bytes()}; }

  SharedReplyMemory& memory_;
  Prompt& prompt_;
  TranscriptHash transcript_, last_;
  std::string first_turn_;
};

std::vector<size_t> special_positions(const RenderedPrompt& rendered) {
  std::vector<size_t> positions;
  size_t offset = 0;
  for (const PromptSpan& span : rendered.spans) {
    size_t from = 0;
    while (span.trusted) {
      const text::SpecialMatch match = text::find_special(span.text, from);
      if (match.spelling == nullptr) break;
      positions.push_back(offset + match.position);
      from = match.position + match.spelling->text.size();
    }
    offset += span.text.size();
  }
  return positions;
}

std::variant<Prompt, RequestError> infill_prompt(const GenerationRequest& request,
                                                 const Tokenizer& tokenizer) {
  const Token begin = tokenizer.find(kInfillBegin), hole = tokenizer.find(kInfillHole),
              end = tokenizer.find(kInfillEnd);
  if (begin < 0 || hole < 0 || end < 0) {
    return RequestError{
        .message = "suffix is not supported: the vocabulary of this model has no tokens for it",
        .param = "suffix"};
  }
  Prompt prompt;
  const auto append = [&](std::string_view text) {
    const std::vector<Token> tokens = tokenizer.encode_plain(text);
    prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
  };
  prompt.tokens = {tokenizer.special().bos, begin};
  append(request.prompt);
  prompt.tokens.push_back(hole);
  append(request.suffix);
  prompt.tokens.push_back(end);
  return prompt;
}

}  // namespace

std::shared_ptr<const SampledReply> SharedReplyMemory::get(std::string_view key) {
  {
    const std::lock_guard lock(mutex_);
    auto known = memory_.get(key);
    if (known != nullptr || archive_ == nullptr) return known;
  }
  auto archived = archive_->get_reply(key);
  if (archived == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  memory_.put(key, archived);
  return archived;
}

void SharedReplyMemory::put(const std::vector<std::string>& keys,
                            const std::shared_ptr<const SampledReply>& reply) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys) memory_.put(key, reply);
  }
  if (archive_ != nullptr) archive_->put_reply(keys, reply);
}

TranscriptKeys reply_keys(const TranscriptKeys& transcript, std::string_view content) {
  return {reply_key(TranscriptHash(transcript.exact), "exact", content),
          reply_key(TranscriptHash(transcript.local), "local", content)};
}

std::variant<Prompt, RequestError> build_prompt(const GenerationRequest& request, SharedReplyMemory& memory,
                                                const Tokenizer& tokenizer,
                                                const PromptOptions& prompt_options) {
  if (request.kind == GenerationRequest::Kind::infill) return infill_prompt(request, tokenizer);
  Prompt prompt;
  std::vector<ChatMessage> messages = request.messages;
  if (request.kind == GenerationRequest::Kind::completion) {
    messages = {{Role::system, std::string(kCompletionSystem)}, {Role::user, request.prompt}};
  }
  Recollection recollection(request, memory, prompt);
  for (ChatMessage& message : messages) recollection.visit(message);
  recollection.finish();

  ChatOptions options{.think = request.thinking.mode};
  if (request.tool_choice != ToolChoice::none) {
    for (const Tool& tool : request.tools) options.tool_schemas.push_back(tool.schema);
  }
  if (const size_t bytes = prompt_options.tool_reminder_tokens * bytes_per_token; bytes > 0) {
    options.tool_reminder = {.first_bytes = bytes, .distance_bytes = bytes / 8};
  }
  prompt.rendered = render_chat(messages, options);
  prompt.text = prompt.rendered.text();
  prompt.tokens = prompt.rendered.encode(tokenizer);
  prompt.special = special_positions(prompt.rendered);
  prompt.thinking = !prompt.tokens.empty() && prompt.tokens.back() == tokenizer.special().think_open;
  const bool tool_context = !options.tool_schemas.empty() ||
                            std::any_of(messages.begin(), messages.end(), [](const ChatMessage& message) {
                              return message.role == Role::tool || !message.tool_calls.empty();
                            });
  prompt.forgets_reasoning = prompt.thinking && !tool_context;
  return prompt;
}

}  // namespace ds4::server
