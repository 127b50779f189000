#include <utility>

#include "server/api/openai_chat.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

void write_token(JsonWriter& json, std::string_view bytes, float logprob) {
  json.member("token", bytes).key("logprob");
  write_logprob(json, logprob);
  json.key("bytes").begin_array();
  for (const char byte : bytes) json.integer(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  json.end_array();
}

void write_scores(JsonWriter& json, const std::vector<ScoredToken>& scores) {
  json.begin_array();
  for (const ScoredToken& score : scores) {
    json.begin_object();
    write_token(json, score.bytes, score.logprob);
    json.key("top_logprobs").begin_array();
    for (const TokenAlternative& other : score.top) {
      json.begin_object();
      write_token(json, other.bytes, other.logprob);
      json.end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

/// `"logprobs":...` if there are scores.
void write_logprobs(JsonWriter& json, const std::vector<ScoredToken>& content,
                    const std::vector<ScoredToken>& reasoning) {
  if (content.empty() && reasoning.empty()) return;
  json.key("logprobs").begin_object();
  if (!content.empty() || reasoning.empty()) write_scores(json.key("content"), content);
  if (!reasoning.empty()) write_scores(json.key("reasoning_content"), reasoning);
  json.end_object();
}

struct Call {
  std::string id, name, arguments;
  bool complete = false;
  bool streamed = false;  // some of its arguments
};

struct Choice {
  std::string content, reasoning;
  std::vector<Call> calls;
  std::vector<ScoredToken> content_scores, reasoning_scores;
  GenerationEvent finished;

  Call& call(size_t index) {
    if (calls.size() <= index) calls.resize(index + 1);
    return calls[index];
  }
};

class ChatReply final : public OpenAiReply {
 public:
  ChatReply(const OpenAiReplyOptions& options, std::shared_ptr<http::Exchange> exchange)
      : OpenAiReply(options, std::move(exchange), "messages",
                    options.stream ? "chat.completion.chunk" : "chat.completion"),
        choices_(options.choices) {}

 private:
  void write_choice(JsonWriter& json, size_t choice) const override;
  void collect(const GenerationEvent& event) override;
  void stream(const GenerationEvent& event) override;
  void stream_begin() override;
  std::string keepalive_choice() const override { return choice_json(0, "{}", nullptr, nullptr); }

  void stream_text(const GenerationEvent& event, const char* member);
  void stream_call(const GenerationEvent& event);
  void send_arguments(const GenerationEvent& event);
  void send_delta(const GenerationEvent& event, std::string_view delta) {
    send_choice(choice_json(event.choice, delta, &event, nullptr));
  }
  static std::string choice_json(size_t index, std::string_view delta, const GenerationEvent* text,
                                 const GenerationEvent* finished);

  std::vector<Choice> choices_;
};

void ChatReply::write_choice(JsonWriter& json, size_t index) const {
  const Choice& choice = choices_[index];
  json.begin_object().member("index", index).key("message").begin_object();
  json.member("role", "assistant").member("content", choice.content);
  if (!choice.reasoning.empty()) json.member("reasoning_content", choice.reasoning);
  bool any_call = false;
  for (const Call& call : choice.calls) {
    if (!call.complete) continue;
    if (!std::exchange(any_call, true)) json.key("tool_calls").begin_array();
    json.begin_object().member("id", call.id).member("type", "function").key("function").begin_object();
    json.member("name", call.name).member("arguments", call.arguments).end_object().end_object();
  }
  if (any_call) json.end_array();
  json.end_object();
  write_logprobs(json, choice.content_scores, choice.reasoning_scores);
  write_finish(json, choice.finished);
  json.end_object();
}

void ChatReply::collect(const GenerationEvent& event) {
  Choice& choice = choices_[event.choice];
  switch (event.kind) {
    case Event::reasoning:
      choice.reasoning += event.text;
      choice.reasoning_scores.insert(choice.reasoning_scores.end(), event.scores.begin(), event.scores.end());
      break;
    case Event::content:
      choice.content += event.text;
      choice.content_scores.insert(choice.content_scores.end(), event.scores.begin(), event.scores.end());
      break;
    case Event::call_begin:
      choice.call(event.call).id = event.id;
      choice.call(event.call).name = event.text;
      break;
    case Event::call_end:
      choice.call(event.call).arguments = event.text;
      choice.call(event.call).complete = true;
      break;
    case Event::call_dropped:
      choice.call(event.call).complete = false;
      break;
    case Event::finished:
      choice.finished = event;
      break;
    default:
      break;
  }
}

void ChatReply::stream_begin() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    send_choice(choice_json(i, R"({"role":"assistant"})", nullptr, nullptr));
  }
}

void ChatReply::stream(const GenerationEvent& event) {
  switch (event.kind) {
    case Event::reasoning:
      return stream_text(event, "reasoning_content");
    case Event::content:
      return stream_text(event, "content");
    case Event::call_begin:
    case Event::call_arguments:
    case Event::call_end:
      return stream_call(event);
    case Event::finished:
      return send_choice(choice_json(event.choice, "{}", nullptr, &event));
    default:
      break;
  }
}

void ChatReply::stream_text(const GenerationEvent& event, const char* member) {
  if (event.text.empty() && event.scores.empty()) return;
  JsonWriter delta;
  send_delta(event, delta.begin_object().member(member, event.text).end_object().text());
}

void ChatReply::stream_call(const GenerationEvent& event) {
  Call& call = choices_[event.choice].call(event.call);
  if (event.kind == Event::call_begin) {
    JsonWriter delta;
    delta.begin_object().key("tool_calls").begin_array().begin_object().member("index", event.call);
    delta.member("id", event.id).member("type", "function").key("function").begin_object();
    delta.member("name", event.text)
        .member("arguments", "")
        .end_object()
        .end_object()
        .end_array()
        .end_object();
    return send_delta(event, delta.text());
  }
  if (event.kind == Event::call_arguments && !event.text.empty()) {
    call.streamed = true;
    send_arguments(event);
  } else if (event.kind == Event::call_end && !call.streamed) {
    send_arguments(event);
  }
}

void ChatReply::send_arguments(const GenerationEvent& event) {
  JsonWriter delta;
  delta.begin_object().key("tool_calls").begin_array().begin_object().member("index", event.call);
  delta.key("function").begin_object().member("arguments", event.text).end_object();
  send_delta(event, delta.end_object().end_array().end_object().text());
}

std::string ChatReply::choice_json(size_t index, std::string_view delta, const GenerationEvent* text,
                                   const GenerationEvent* finished) {
  JsonWriter json;
  json.begin_object().member("index", index).key("delta").raw(delta);
  if (text != nullptr) {
    const std::vector<ScoredToken> none;
    const bool reasoning = text->kind == Event::reasoning;
    write_logprobs(json, reasoning ? none : text->scores, reasoning ? text->scores : none);
  }
  if (finished != nullptr) {
    write_finish(json, *finished);
  } else {
    json.key("finish_reason").null();
  }
  return json.end_object().take();
}

}  // namespace

std::shared_ptr<EventSink> make_chat_reply(const OpenAiReplyOptions& options,
                                           std::shared_ptr<http::Exchange> exchange) {
  return std::make_shared<ChatReply>(options, std::move(exchange));
}

}  // namespace ds4::server::api
