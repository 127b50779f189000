#include <fmt/format.h>

#include "server/api/openai_completions.hpp"
#include "text/utf8.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

bool is_character_start(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (const char byte : text) count += is_character_start(byte) ? 1 : 0;
  return count;
}

/// A token in a text: parts of characters in the spelling of OpenAI, bytes:\xe2\x80.
std::string token_text(std::string_view bytes) {
  if (text::is_utf8(bytes)) return std::string(bytes);
  std::string spelled = "bytes:";
  for (const char byte : bytes) spelled += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return spelled;
}

/// `"logprobs":{...}` of tokens that follow `offset` characters of the choice's text.
void write_logprobs(JsonWriter& json, const std::vector<ScoredToken>& scores, size_t offset,
                    bool alternatives) {
  json.key("logprobs").begin_object().key("tokens").begin_array();
  for (const ScoredToken& score : scores) json.string(token_text(score.bytes));
  json.end_array().key("token_logprobs").begin_array();
  for (const ScoredToken& score : scores) write_logprob(json, score.logprob);
  json.end_array().key("top_logprobs");
  if (alternatives) {
    json.begin_array();
    for (const ScoredToken& score : scores) {
      json.begin_object();
      for (const TokenAlternative& other : score.top) {
        json.key(token_text(other.bytes));
        write_logprob(json, other.logprob);
      }
      json.end_object();
    }
    json.end_array();
  } else {
    json.null();
  }
  json.key("text_offset").begin_array();
  for (const ScoredToken& score : scores) {
    json.integer(offset);
    offset += count_characters(score.bytes);
  }
  json.end_array().end_object();
}

struct Choice {
  std::string text;
  std::vector<ScoredToken> scores;
  size_t characters = 0;  // of the tokens whose scores were streamed
  GenerationEvent finished;
};

class CompletionReply final : public OpenAiReply {
 public:
  CompletionReply(const OpenAiReplyOptions& options, std::shared_ptr<http::Exchange> exchange)
      : OpenAiReply(options, std::move(exchange), "prompt", "text_completion"), choices_(options.choices) {}

 private:
  void write_choice(JsonWriter& json, size_t index) const override {
    const Choice& choice = choices_[index];
    json.raw(choice_json(index, choice.text, choice.scores, 0, &choice.finished));
  }

  void collect(const GenerationEvent& event) override {
    Choice& choice = choices_[event.choice];
    if (event.kind == Event::content || event.kind == Event::reasoning) {
      choice.text += event.text;
      choice.scores.insert(choice.scores.end(), event.scores.begin(), event.scores.end());
    } else if (event.kind == Event::finished) {
      choice.finished = event;
    }
  }

  void stream(const GenerationEvent& event) override {
    Choice& choice = choices_[event.choice];
    if (event.kind == Event::finished) {
      send_choice(choice_json(event.choice, "", {}, 0, &event));
    } else if (event.kind == Event::content || event.kind == Event::reasoning) {
      if (event.text.empty() && event.scores.empty()) return;
      send_choice(choice_json(event.choice, event.text, event.scores, choice.characters, nullptr));
      for (const ScoredToken& score : event.scores) choice.characters += count_characters(score.bytes);
    }
  }

  void stream_begin() override {}
  std::string keepalive_choice() const override { return choice_json(0, "", {}, 0, nullptr); }

  std::string choice_json(size_t index, std::string_view text, const std::vector<ScoredToken>& scores,
                          size_t offset, const GenerationEvent* finished) const {
    JsonWriter json;
    json.begin_object().member("text", text).member("index", index);
    if (!scores.empty()) write_logprobs(json, scores, offset, options().top_logprobs);
    if (finished != nullptr) {
      write_finish(json, *finished);
    } else {
      json.key("finish_reason").null();
    }
    return json.end_object().take();
  }

  std::vector<Choice> choices_;
};

}  // namespace

std::shared_ptr<EventSink> make_completion_reply(const OpenAiReplyOptions& options,
                                                 std::shared_ptr<http::Exchange> exchange) {
  return std::make_shared<CompletionReply>(options, std::move(exchange));
}

}  // namespace ds4::server::api
