// What the replies of OpenAI's two older APIs share: their envelope, usage, log-probabilities and stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/json_writer.hpp"
#include "server/generation.hpp"
#include "server/http/exchange.hpp"

namespace ds4::server::api {

struct OpenAiReplyOptions {
  std::string id;  // "chatcmpl-...", "cmpl-..."
  int64_t created = 0;
  std::string model;  // as the client called it
  bool stream = false;
  bool include_usage = false;  // of a stream
  size_t choices = 1;
  bool top_logprobs = false;    // completions: alternatives were asked for
  bool hide_reasoning = false;  // chat: the client wants the answer alone
  Thinking thinking;
};

/// `prefix`, a new id, the present time, the names and switches of the request.
OpenAiReplyOptions reply_options(const char* id_prefix, const GenerationRequest& request, bool stream,
                                 bool include_usage);

const char* name_of(FinishReason finish);

/// {"prompt_tokens":...,"prompt_tokens_details":...,"completion_tokens_details":...}
void write_openai_usage(JsonWriter& json, const Usage& usage);

/// `"finish_reason":...`, and `"stop_reason":...` if a stop string of the request ended the answer.
void write_finish(JsonWriter& json, const GenerationEvent& finished);

/// `"prefill":{"done":...,"total":...}`: how far the evaluation of a prompt has come, in tokens.
void write_prefill(JsonWriter& json, const GenerationEvent& progress);

/// OpenAI's number for what the model cannot say.
void write_logprob(JsonWriter& json, float logprob);

/// The base of both replies: order of events, errors, the end. Derived classes write choices.
class OpenAiReply : public EventSink {
 public:
  /// `overflow_param`: where a prompt that is too long came from. `object`: of the envelope, of a stream and
  /// else.
  OpenAiReply(OpenAiReplyOptions options, std::shared_ptr<http::Exchange> exchange,
              std::string overflow_param, std::string object);

  void on_event(const GenerationEvent& event) final;
  bool gone() const final { return exchange_->gone(); }

 protected:
  /// A complete choice of the reply that is not streamed.
  virtual void write_choice(JsonWriter& json, size_t choice) const = 0;
  /// Takes the event into the choices, or streams it with send_choice().
  virtual void collect(const GenerationEvent& event) = 0;
  virtual void stream(const GenerationEvent& event) = 0;
  /// What a stream begins with.
  virtual void stream_begin() = 0;
  /// The chunk that says nothing.
  virtual std::string keepalive_choice() const = 0;

  /// `choice` is the JSON object of one choice.
  void send_choice(const std::string& choice);
  const OpenAiReplyOptions& options() const { return options_; }

 private:
  void begin();
  void send_progress(const GenerationEvent& progress);
  void finish(const GenerationEvent& done);
  void fail(const RequestError& error);
  JsonWriter envelope() const;
  std::string chunk(const std::string& choice) const;

  OpenAiReplyOptions options_;
  std::shared_ptr<http::Exchange> exchange_;
  std::string overflow_param_, object_;
  bool begun_ = false;
  bool ended_ = false;
  std::optional<RequestError> choice_error_;  // not streamed: one of the choices came to nothing
};

}  // namespace ds4::server::api
