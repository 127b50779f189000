#include <algorithm>
#include <utility>

#include "server/api/anthropic_messages.hpp"
#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/json_writer.hpp"
#include "server/api/openai_reply.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;

struct Block {
  enum class Kind { thinking, text, tool } kind = Kind::text;
  std::string id, name;  // tool
  std::string text;      // tool: the input. Of a stream: not kept
  bool any_piece = false;
  bool complete = false;  // tool: was read to its end
};

void write_usage(JsonWriter& json, const Usage& usage, size_t output_tokens) {
  const size_t cached = std::min(usage.cached_tokens, usage.prompt_tokens);
  const size_t created = usage.prompt_tokens - cached;
  json.begin_object().member("input_tokens", usage.prompt_tokens - cached - created);
  json.member("output_tokens", output_tokens).member("cache_read_input_tokens", cached);
  json.member("cache_creation_input_tokens", created);
}

void write_reasoning_tokens(JsonWriter& json, const Usage& usage) {
  json.key("output_tokens_details").begin_object();
  json.member("reasoning_tokens", usage.reasoning_tokens).end_object();
}

/// `"stop_reason":...,"stop_sequence":...`
void write_stop(JsonWriter& json, const GenerationEvent& finished) {
  const char* reason = "end_turn";
  if (finished.finish == FinishReason::tool_calls) reason = "tool_use";
  if (finished.finish == FinishReason::length) reason = "max_tokens";
  if (finished.stop_sequence) reason = "stop_sequence";
  json.member("stop_reason", reason).key("stop_sequence");
  if (finished.stop_sequence) {
    json.string(*finished.stop_sequence);
  } else {
    json.null();
  }
}

void write_block(JsonWriter& json, const Block& block, const std::string& signature) {
  json.begin_object();
  switch (block.kind) {
    case Block::Kind::thinking:
      json.member("type", "thinking").member("thinking", block.text).member("signature", signature);
      break;
    case Block::Kind::text:
      json.member("type", "text").member("text", block.text);
      break;
    case Block::Kind::tool:
      json.member("type", "tool_use").member("id", block.id).member("name", block.name).key("input");
      json.raw(block.text);
      break;
  }
  json.end_object();
}

/// Streamed and complete replies go through the same steps: blocks are opened, filled and closed one after
/// the other.
class MessagesReply final : public EventSink {
 public:
  MessagesReply(MessagesReplyOptions options, std::shared_ptr<http::Exchange> exchange)
      : options_(std::move(options)), exchange_(std::move(exchange)) {}

  void on_event(const GenerationEvent& event) override;
  bool gone() const override { return exchange_->gone(); }

 private:
  void begin(const Usage& usage);
  void send_progress(const GenerationEvent& progress);
  void open(Block block);
  void append(std::string_view text);
  void append_text(Block::Kind kind, std::string_view text);
  void close();
  void end_call(const std::string& input);
  void finish(const Usage& usage);
  void respond(const Usage& usage);
  void fail(const RequestError& error);

  void send(const char* name, JsonWriter json) {
    if (!options_.stream) return;
    exchange_->write(event_text(name, json.end_object().take()));
  }
  static JsonWriter data(const char* name) {
    JsonWriter json;
    json.begin_object().member("type", name);
    return json;
  }

  MessagesReplyOptions options_;
  std::shared_ptr<http::Exchange> exchange_;
  std::vector<Block> blocks_;
  bool is_open_ = false;  // the last block
  GenerationEvent finished_;
  bool begun_ = false;
  bool ended_ = false;
};

void MessagesReply::on_event(const GenerationEvent& event) {
  if (ended_ || event.choice != 0) return;
  if (event.kind == Event::failed) return fail(event.error);
  begin(event.usage);
  switch (event.kind) {
    case Event::progress:
      return send_progress(event);
    case Event::reasoning:
      return append_text(Block::Kind::thinking, event.text);
    case Event::content:
      return append_text(Block::Kind::text, event.text);
    case Event::call_begin:
      return open({Block::Kind::tool, event.id, event.text, ""});
    case Event::call_arguments:
      return append(event.text);
    case Event::call_end:
      return end_call(event.text);
    case Event::call_dropped:
      return close();
    case Event::finished:
      if (event.finish == FinishReason::error) return fail(generation_error(event));
      finished_ = event;
      return;
    case Event::done:
      return finish(event.usage);
    default:
      return;
  }
}

void MessagesReply::begin(const Usage& usage) {
  if (!options_.stream || std::exchange(begun_, true)) return;
  begin_event_stream(*exchange_, options_.headers, [] { return event_text("ping", R"({"type":"ping"})"); });
  JsonWriter json = data("message_start");
  json.key("message").begin_object().member("id", options_.id).member("type", "message");
  json.member("role", "assistant").member("model", options_.model).key("content").begin_array().end_array();
  json.key("stop_reason").null().key("stop_sequence").null().key("usage");
  write_usage(json, usage, 0);
  json.end_object().end_object();
  send("message_start", std::move(json));
}

void MessagesReply::send_progress(const GenerationEvent& progress) {
  if (progress.total == 0) return;  // it waits
  JsonWriter json = data("ping");
  write_prefill(json, progress);
  send("ping", std::move(json));
}

void MessagesReply::open(Block block) {
  close();
  JsonWriter json = data("content_block_start");
  json.member("index", blocks_.size()).key("content_block");
  // As it will be, but for its text.
  Block empty = block;
  if (block.kind == Block::Kind::tool) empty.text = "{}";
  write_block(json, empty, "");
  send("content_block_start", std::move(json));
  blocks_.push_back(std::move(block));
  is_open_ = true;
}

void MessagesReply::append(std::string_view text) {
  if (text.empty() || !is_open_) return;
  Block& block = blocks_.back();
  block.any_piece = true;
  if (!options_.stream) {
    block.text += text;
    return;
  }
  JsonWriter json = data("content_block_delta");
  json.member("index", blocks_.size() - 1).key("delta").begin_object();
  if (block.kind == Block::Kind::thinking) {
    json.member("type", "thinking_delta").member("thinking", text);
  } else if (block.kind == Block::Kind::text) {
    json.member("type", "text_delta").member("text", text);
  } else {
    json.member("type", "input_json_delta").member("partial_json", text);
  }
  json.end_object();
  send("content_block_delta", std::move(json));
}

void MessagesReply::append_text(Block::Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (!is_open_ || blocks_.back().kind != kind) open({kind, "", "", ""});
  append(text);
}

void MessagesReply::close() {
  if (!std::exchange(is_open_, false)) return;
  const size_t index = blocks_.size() - 1;
  if (blocks_.back().kind == Block::Kind::thinking) {
    JsonWriter json = data("content_block_delta");
    json.member("index", index).key("delta").begin_object().member("type", "signature_delta");
    json.member("signature", options_.id).end_object();
    send("content_block_delta", std::move(json));
  }
  JsonWriter json = data("content_block_stop");
  json.member("index", index);
  send("content_block_stop", std::move(json));
  // A call that was dropped. A stream has shown it already; its input breaks off as it does at a limit.
  const Block& block = blocks_.back();
  if (block.kind == Block::Kind::tool && !block.complete && !options_.stream) blocks_.pop_back();
}

void MessagesReply::end_call(const std::string& input) {
  if (!is_open_ || blocks_.back().kind != Block::Kind::tool) return;
  if (!blocks_.back().any_piece) append(input);
  if (!options_.stream) blocks_.back().text = input;
  blocks_.back().complete = true;
  close();
}

void MessagesReply::finish(const Usage& usage) {
  ended_ = true;
  close();
  const bool answered = std::any_of(blocks_.begin(), blocks_.end(),
                                    [](const Block& block) { return block.kind != Block::Kind::thinking; });
  if (!answered) {
    open({Block::Kind::text, "", "", ""});
    close();
  }
  if (!options_.stream) return respond(usage);
  JsonWriter json = data("message_delta");
  write_stop(json.key("delta").begin_object(), finished_);
  // The whole count: how much of the prompt was cached is not known at the start of a stream that waited.
  write_usage(json.end_object().key("usage"), usage, usage.completion_tokens);
  write_reasoning_tokens(json, usage);
  json.end_object();
  send("message_delta", std::move(json));
  send("message_stop", data("message_stop"));
  exchange_->end();
}

void MessagesReply::respond(const Usage& usage) {
  JsonWriter json;
  json.begin_object().member("id", options_.id).member("type", "message").member("role", "assistant");
  json.member("model", options_.model).key("content").begin_array();
  for (const Block& block : blocks_) write_block(json, block, options_.id);
  json.end_array();
  write_stop(json, finished_);
  write_usage(json.key("usage"), usage, usage.completion_tokens);
  write_reasoning_tokens(json, usage);
  http::Response response;
  response.body = json.end_object().end_object().take() + "\n";
  response.headers = options_.headers;
  exchange_->respond(std::move(response));
}

void MessagesReply::fail(const RequestError& error) {
  ended_ = true;
  if (!begun_) return exchange_->respond(anthropic_error_response(error));
  end_with_error(*exchange_, anthropic_error(error));
}

}  // namespace

std::shared_ptr<EventSink> make_messages_reply(MessagesReplyOptions options,
                                               std::shared_ptr<http::Exchange> exchange) {
  return std::make_shared<MessagesReply>(std::move(options), std::move(exchange));
}

}  // namespace ds4::server::api
