// For tests: an exchange that keeps what is sent, and a generator that plays events written by hand.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/generator.hpp"
#include "server/http/exchange.hpp"
#include "text/test_vocabulary.hpp"

namespace ds4::server::api {

class FakeExchange : public http::Exchange {
 public:
  void respond(http::Response value) override {
    response = std::move(value);
    ++responses;
  }
  void begin_stream(int status, std::string content_type, http::HeaderList headers) override {
    response.status = status;
    response.content_type = std::move(content_type);
    response.headers = std::move(headers);
    ++streams;
  }
  void write(std::string bytes) override { response.body += bytes; }
  void end() override { ++ends; }
  void set_keepalive_maker(std::function<std::string()> make, std::chrono::milliseconds interval) override {
    make_keepalive = std::move(make);
    ++keepalives_set;
    keepalive_interval = interval;
  }
  bool gone() const override { return left; }
  void on_gone(std::function<void()> /*callback*/) override {}
  size_t queued_bytes() const override { return 0; }

  http::Response response;
  int responses = 0, streams = 0, ends = 0;
  std::string keepalive() const { return make_keepalive ? make_keepalive() : ""; }
  std::function<std::string()> make_keepalive;
  int keepalives_set = 0;
  std::chrono::milliseconds keepalive_interval{0};
  bool left = false;
};

/// What an exchange gets when the reply that `make(exchange)` returns is told of these events.
template <class MakeReply>
std::shared_ptr<FakeExchange> play_on(MakeReply make, const std::vector<GenerationEvent>& events) {
  auto exchange = std::make_shared<FakeExchange>();
  const std::shared_ptr<EventSink> reply = make(exchange);
  for (const GenerationEvent& event : events) reply->on_event(event);
  return exchange;
}

class FakeGenerator final : public Generator {
 public:
  void submit(GenerationRequest taken, std::shared_ptr<EventSink> sink) override {
    request = std::move(taken);
    ++submitted;
    for (const GenerationEvent& event : script) sink->on_event(event);
  }
  Count count(const GenerationRequest& /*request*/) const override { return counted; }
  const ServerInfo& info() const override { return server; }
  const Tokenizer& tokenizer() const override { return text::nano_tokenizer(); }

  std::vector<GenerationEvent> script;
  GenerationRequest request;
  int submitted = 0;
  Count counted;
  ServerInfo server{"deepseek-v4-flash",   "DeepSeek V4 Flash", 32768, 8192, 1767225600, true,
                    EffortProfile::preview};
};

inline GenerationEvent started_event() {
  GenerationEvent event;
  event.kind = GenerationEvent::Kind::started;
  return event;
}

/// A piece of choice `choice`, or of its call `call`.
inline GenerationEvent text_event(GenerationEvent::Kind kind, std::string text, size_t choice = 0,
                                  size_t call = 0) {
  GenerationEvent event;
  event.kind = kind;
  event.text = std::move(text);
  event.choice = choice;
  event.call = call;
  return event;
}

inline GenerationEvent call_event(std::string id, std::string name, size_t call = 0, size_t choice = 0) {
  GenerationEvent event = text_event(GenerationEvent::Kind::call_begin, std::move(name), choice, call);
  event.id = std::move(id);
  return event;
}

inline GenerationEvent finished_event(FinishReason finish, size_t choice = 0) {
  GenerationEvent event;
  event.kind = GenerationEvent::Kind::finished;
  event.finish = finish;
  event.choice = choice;
  return event;
}

/// Of the evaluation of a prompt.
inline GenerationEvent progress_event(size_t done, size_t total) {
  GenerationEvent event;
  event.kind = GenerationEvent::Kind::progress;
  event.done = done;
  event.total = total;
  return event;
}

inline GenerationEvent done_event(Usage usage) {
  GenerationEvent event;
  event.usage = usage;
  return event;
}

/// A prompt that does not fit, which came from the field `param`.
inline RequestError context_overflow(size_t prompt_tokens, size_t context, std::string param) {
  RequestError error;
  error.message = fmt::format("Prompt has {} tokens, but the configured context size is {} tokens",
                              prompt_tokens, context);
  error.param = std::move(param);
  error.code = "context_length_exceeded";
  error.prompt_tokens = prompt_tokens;
  error.context = context;
  return error;
}

inline GenerationEvent failed_event(RequestError error) {
  GenerationEvent event;
  event.kind = GenerationEvent::Kind::failed;
  event.error = std::move(error);
  return event;
}

}  // namespace ds4::server::api
