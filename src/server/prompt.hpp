// A request as the model sees it.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/tokenizer.hpp"
#include "server/generation.hpp"
#include "store/reply_memory.hpp"

namespace ds4::server {

/// Hashes of what a client shows of a conversation: of all messages and tools, and of the user's first turn
/// and the last message alone.
struct TranscriptKeys {
  std::string exact, local;
};

struct Prompt {
  RenderedPrompt rendered;  // empty for infill, which has no text form
  std::string text;         // of `rendered`
  std::vector<Token> tokens;
  std::vector<size_t> special;  // where in `text` special tokens begin, ascending
  bool thinking = false;        // ends with an open reasoning tag
  // The prompt of the next turn leaves out what is reasoned now, so it differs from the last token on.
  bool forgets_reasoning = false;
  TranscriptKeys transcript;   // of all messages
  size_t replies_known = 0;    // assistant messages written as they were sampled
  size_t replies_unknown = 0;  // the others
  size_t calls_changed = 0;    // known replies whose calls the client shows otherwise; written as it does
};

/// Where replies outlive the process. Safe to use from several threads.
class ReplyArchive {
 public:
  virtual ~ReplyArchive() = default;
  /// Null if unknown.
  virtual std::shared_ptr<const SampledReply> get_reply(std::string_view key) = 0;
  virtual void put_reply(const std::vector<std::string>& keys,
                         const std::shared_ptr<const SampledReply>& reply) = 0;
};

/// Replies of earlier turns, shared by the threads that render and the one that generates.
class SharedReplyMemory {
 public:
  /// `archive` may be null, else it outlives the memory.
  explicit SharedReplyMemory(const store::ReplyMemoryLimits& limits, ReplyArchive* archive = nullptr)
      : memory_(limits), archive_(limits.keys > 0 ? archive : nullptr) {}

  /// Null if unknown.
  std::shared_ptr<const SampledReply> get(std::string_view key);
  /// Remembers a reply under each of the keys.
  void put(const std::vector<std::string>& keys, const std::shared_ptr<const SampledReply>& reply);
  bool contains(std::string_view key) {
    const std::lock_guard lock(mutex_);
    return memory_.contains(key);
  }

 private:
  std::mutex mutex_;
  store::ReplyMemory memory_;
  ReplyArchive* archive_;
};

struct PromptOptions {
  /// Of prompts longer than this, tokens being four bytes of text here: about every eighth as many, they
  /// are reminded of how tools are called. 0: never.
  size_t tool_reminder_tokens = 32768;
};

/// Renders and tokenises. Assistant messages that the memory knows, by the ids of their calls or by the
/// transcript before them, are written as they were sampled, reasoning included, but for texts and calls that
/// the client shows otherwise. RequestError:
/// infill with a vocabulary that has no tokens for it.
std::variant<Prompt, RequestError> build_prompt(const GenerationRequest& request, SharedReplyMemory& memory,
                                                const Tokenizer& tokenizer,
                                                const PromptOptions& options = {});

/// The keys under which a reply with this visible text to this transcript is remembered.
TranscriptKeys reply_keys(const TranscriptKeys& transcript, std::string_view content);

}  // namespace ds4::server
