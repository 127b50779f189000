#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "server/api/error_body.hpp"
#include "server/api/event_stream.hpp"
#include "server/api/openai_reply.hpp"
#include "server/api/openai_responses_items.hpp"
#include "server/api/thinking_fields.hpp"

namespace ds4::server::api {
namespace {

using Event = GenerationEvent::Kind;
using ItemKind = ResponseItem::Kind;
using ToolKind = ResponseTool::Kind;

void write_usage(JsonWriter& json, const Usage& usage) {
  const size_t cached = std::min(usage.cached_tokens, usage.prompt_tokens);
  json.begin_object().member("input_tokens", usage.prompt_tokens).key("input_tokens_details").begin_object();
  json.member("cached_tokens", cached)
      .member("cache_write_tokens", usage.prompt_tokens - cached)
      .end_object();
  json.member("output_tokens", usage.completion_tokens).key("output_tokens_details").begin_object();
  json.member("reasoning_tokens", usage.reasoning_tokens).end_object();
  json.member("total_tokens", usage.prompt_tokens + usage.completion_tokens).end_object();
}

/// Kinds of calls whose arguments are text, which streams.
bool streams(const ResponseTool& tool) {
  return tool.kind == ToolKind::function || tool.kind == ToolKind::custom;
}

/// Numbers of a stream's events: taken by the thread that generates, and by the HTTP side for keepalives.
struct SequenceNumbers {
  std::mutex mutex;
  size_t next = 0;
};

/// `members`: of the event's object, behind its type and number.
std::string numbered_event(std::string_view type, size_t number, std::string_view members) {
  return event_text(type, fmt::format(R"({{"type":"{}","sequence_number":{},{}}})", type, number, members));
}

/// Streamed and complete replies go through the same steps: items are announced, filled and completed one
/// after the other.
class ResponsesReply final : public EventSink {
 public:
  ResponsesReply(ResponsesReplyOptions options, std::shared_ptr<http::Exchange> exchange)
      : options_(std::move(options)), exchange_(std::move(exchange)) {}

  void on_event(const GenerationEvent& event) override;
  bool gone() const override { return exchange_->gone(); }

 private:
  void begin();
  void send_progress(const GenerationEvent& progress);
  void announce(ResponseItem item);
  void announce_part();
  void append_text(ItemKind kind, const std::string& text);
  void send_delta(std::string_view text);
  void begin_call(const GenerationEvent& event);
  void push_arguments(const std::string& arguments);
  void end_call(const std::string& arguments);
  void send_call_done();
  void send_text_done();
  void close(const char* status);
  void complete_item(const char* status);
  void finish(const Usage& usage);
  void fail(RequestError error);
  void keep(std::string body);

  /// An event about the open item, up to its index.
  JsonWriter item_event();
  void send(const char* type, JsonWriter json);
  std::string response_json(const char* status, const Usage* usage, const RequestError* error) const;
  void send_response(const char* type, const std::string& response);

  ResponsesReplyOptions options_;
  std::shared_ptr<http::Exchange> exchange_;
  std::shared_ptr<SequenceNumbers> numbers_ = std::make_shared<SequenceNumbers>();
  size_t next_index_ = 0;
  std::optional<ResponseItem> open_;
  size_t open_index_ = 0;
  bool any_piece_ = false;  // of the open item's text was sent
  CustomInputReader custom_input_;
  std::string output_;  // the completed items, separated by commas
  std::vector<std::string> item_ids_;
  ChatMessage reply_;  // the answer, to be kept
  GenerationEvent finished_;
  bool begun_ = false;
  bool ended_ = false;
};

void ResponsesReply::on_event(const GenerationEvent& event) {
  if (ended_ || event.choice != 0) return;
  if (event.kind == Event::failed) return fail(event.error);
  begin();
  switch (event.kind) {
    case Event::progress:
      return send_progress(event);
    case Event::reasoning:
      reply_.reasoning += event.text;
      if (options_.summaries) append_text(ItemKind::reasoning, event.text);
      return;
    case Event::content:
      reply_.content += event.text;
      return append_text(ItemKind::message, event.text);
    case Event::call_begin:
      return begin_call(event);
    case Event::call_arguments:
      return push_arguments(event.text);
    case Event::call_end:
      return end_call(event.text);
    case Event::call_dropped:
      return close("incomplete");
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

void ResponsesReply::begin() {
  if (!options_.stream || std::exchange(begun_, true)) return;
  const std::string response = response_json("in_progress", nullptr, nullptr);
  // While an event takes its number and is sent, there is no silence to fill.
  begin_event_stream(
      *exchange_, options_.headers, [numbers = numbers_, members = "\"response\":" + response] {
        const std::unique_lock lock(numbers->mutex, std::try_to_lock);
        return lock ? numbered_event("response.in_progress", numbers->next++, members) : std::string();
      });
  send_response("response.created", response);
}

void ResponsesReply::send_progress(const GenerationEvent& progress) {
  if (!options_.stream || progress.total == 0) return;  // of nothing: it waits
  JsonWriter json;
  json.begin_object().key("response").raw(response_json("in_progress", nullptr, nullptr));
  write_prefill(json, progress);
  send("response.in_progress", std::move(json));
}

void ResponsesReply::announce(ResponseItem item) {
  close("completed");
  open_ = std::move(item);
  open_index_ = next_index_++;
  any_piece_ = false;
  JsonWriter json;
  write_announced_item(json.begin_object().member("output_index", open_index_).key("item"), *open_);
  send("response.output_item.added", std::move(json));
  announce_part();
}

void ResponsesReply::announce_part() {
  if (open_->kind == ItemKind::call) return;
  const bool reasoning = open_->kind == ItemKind::reasoning;
  const char* type = reasoning ? "response.reasoning_summary_part.added" : "response.content_part.added";
  JsonWriter json = item_event();
  json.key("part");
  if (reasoning) {
    json.begin_object().member("type", "summary_text").member("text", "").end_object();
  } else {
    write_text_part(json, "");
  }
  send(type, std::move(json));
}

void ResponsesReply::append_text(ItemKind kind, const std::string& text) {
  if (text.empty()) return;
  if (!open_ || open_->kind != kind) {
    announce({kind, options_.new_id(kind == ItemKind::reasoning ? "rs_" : "msg_"), "", "", {}});
  }
  open_->text += text;
  send_delta(text);
}

void ResponsesReply::send_delta(std::string_view text) {
  if (text.empty()) return;
  any_piece_ = true;
  const char* type = "response.output_text.delta";
  if (open_->kind == ItemKind::reasoning) type = "response.reasoning_summary_text.delta";
  if (open_->kind == ItemKind::call) {
    type = open_->tool.kind == ToolKind::custom ? "response.custom_tool_call_input.delta"
                                                : "response.function_call_arguments.delta";
  }
  JsonWriter json = item_event();
  json.member("delta", text);
  send(type, std::move(json));
}

void ResponsesReply::begin_call(const GenerationEvent& event) {
  ResponseItem item;
  item.kind = ItemKind::call;
  item.call_id = event.id;
  const auto known = options_.tools.find(event.text);
  item.tool =
      known != options_.tools.end() ? known->second : ResponseTool{ToolKind::function, event.text, ""};
  const char* prefix = item.tool.kind == ToolKind::custom ? "ctc_" : "fc_";
  if (item.tool.kind == ToolKind::local_shell) prefix = "lsh_";
  item.id = options_.new_id(prefix);
  custom_input_ = CustomInputReader();
  // Others are announced when all of them is known.
  if (streams(item.tool)) return announce(std::move(item));
  close("completed");
  open_ = std::move(item);
}

void ResponsesReply::push_arguments(const std::string& arguments) {
  if (!open_ || open_->kind != ItemKind::call || !streams(open_->tool)) return;
  send_delta(open_->tool.kind == ToolKind::custom ? custom_input_.push(arguments) : arguments);
}

void ResponsesReply::end_call(const std::string& arguments) {
  if (!open_ || open_->kind != ItemKind::call) return;
  const bool custom = open_->tool.kind == ToolKind::custom;
  if (!streams(open_->tool)) {
    ResponseItem item = std::move(*open_);
    open_.reset();
    announce(std::move(item));
  }
  open_->text = custom ? custom_input(arguments) : arguments;
  if (custom && open_->text.starts_with(custom_input_.text())) {
    send_delta(std::string_view(open_->text).substr(custom_input_.text().size()));
  } else if (!custom && streams(open_->tool) && !any_piece_) {
    send_delta(arguments);
  }
  reply_.tool_calls.push_back({open_->call_id, open_->tool.name_space + open_->tool.name, arguments});
  send_call_done();
  complete_item("completed");
}

void ResponsesReply::send_call_done() {
  if (!streams(open_->tool)) return;
  const bool custom = open_->tool.kind == ToolKind::custom;
  const char* type =
      custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done";
  JsonWriter json = item_event();
  if (custom) {
    json.member("input", open_->text);
  } else {
    json.member("name", open_->tool.name);
    if (!open_->tool.name_space.empty()) json.member("namespace", open_->tool.name_space);
    json.member("arguments", open_->text);
  }
  send(type, std::move(json));
}

void ResponsesReply::send_text_done() {
  const bool reasoning = open_->kind == ItemKind::reasoning;
  const char* type = reasoning ? "response.reasoning_summary_text.done" : "response.output_text.done";
  JsonWriter text = item_event();
  text.member("text", open_->text);
  send(type, std::move(text));
  type = reasoning ? "response.reasoning_summary_part.done" : "response.content_part.done";
  JsonWriter part = item_event();
  part.key("part");
  if (reasoning) {
    part.begin_object().member("type", "summary_text").member("text", open_->text).end_object();
  } else {
    write_text_part(part, open_->text);
  }
  send(type, std::move(part));
}

/// Completes the open item. A call that is not at its end is dropped: clients act on
/// response.output_item.done, which it never gets.
void ResponsesReply::close(const char* status) {
  if (!open_) return;
  if (open_->kind == ItemKind::call) return open_.reset();
  send_text_done();
  complete_item(status);
}

void ResponsesReply::complete_item(const char* status) {
  JsonWriter item;
  write_item(item, *open_, status);
  if (!output_.empty()) output_.push_back(',');
  output_ += item.text();
  item_ids_.push_back(open_->id);
  JsonWriter json;
  json.begin_object().member("output_index", open_index_).key("item").raw(item.text());
  send("response.output_item.done", std::move(json));
  open_.reset();
}

void ResponsesReply::finish(const Usage& usage) {
  const bool cut = finished_.finish == FinishReason::length;
  const bool open_reasoning = open_ && open_->kind == ItemKind::reasoning;
  close((open_reasoning ? !finished_.reasoning_complete : cut) ? "incomplete" : "completed");
  ended_ = true;
  std::string body = response_json(cut ? "incomplete" : "completed", &usage, nullptr);
  keep(body);  // first: a client may go on from it at once
  if (options_.stream) {
    send_response(cut ? "response.incomplete" : "response.completed", body);
    exchange_->end();
  } else {
    http::Response response;
    response.body = std::move(body);
    response.headers = options_.headers;
    exchange_->respond(std::move(response));
  }
}

void ResponsesReply::keep(std::string body) {
  if (!options_.store) return;
  reply_.role = Role::assistant;
  options_.conversation.push_back(std::move(reply_));
  options_.store->put(options_.id, {std::move(options_.conversation), std::move(body), std::move(item_ids_)});
}

void ResponsesReply::fail(RequestError error) {
  ended_ = true;
  if (!begun_) {
    if (error.code == "context_length_exceeded") error.param = "input";
    return exchange_->respond(openai_error_response(error));
  }
  close("incomplete");
  send_response("response.failed", response_json("failed", nullptr, &error));
  exchange_->end();
}

JsonWriter ResponsesReply::item_event() {
  JsonWriter json;
  json.begin_object().member("item_id", open_->id).member("output_index", open_index_);
  if (open_->kind == ItemKind::reasoning) json.member("summary_index", 0);
  if (open_->kind == ItemKind::message) json.member("content_index", 0);
  return json;
}

void ResponsesReply::send(const char* type, JsonWriter json) {
  if (!options_.stream) return;
  const std::string object = json.end_object().take();
  const std::string_view members = std::string_view(object).substr(1, object.size() - 2);
  const std::lock_guard lock(numbers_->mutex);
  exchange_->write(numbered_event(type, numbers_->next++, members));
}

void ResponsesReply::send_response(const char* type, const std::string& response) {
  JsonWriter json;
  json.begin_object().key("response").raw(response);
  send(type, std::move(json));
}

/// `usage`: of a response that ended; `error`: of one that failed.
std::string ResponsesReply::response_json(const char* status, const Usage* usage,
                                          const RequestError* error) const {
  JsonWriter json;
  json.begin_object().member("id", options_.id).member("object", "response");
  json.member("created_at", options_.created).member("status", status).member("model", options_.model);
  if (error != nullptr) {
    const std::string message = error->message.empty() ? "generation failed" : error->message;
    json.key("error").begin_object().member("code", error->code.empty() ? "server_error" : error->code);
    json.member("message", message).end_object();
  }
  if (usage != nullptr && finished_.finish == FinishReason::length) {
    json.key("incomplete_details").begin_object().member("reason", "max_output_tokens").end_object();
  }
  const bool over = usage != nullptr || error != nullptr;
  json.key("output").raw("[" + (over ? output_ : std::string()) + "]");
  if (usage != nullptr) write_usage(json.key("usage"), *usage);
  if (!options_.previous_response_id.empty())
    json.member("previous_response_id", options_.previous_response_id);
  json.key("reasoning").begin_object().member("effort", name_of(options_.think)).end_object();
  std::string text = json.end_object().take();
  if (options_.told_back.empty()) return text;
  text.back() = ',';
  if (error == nullptr) text += "\"error\":null,";
  if (usage == nullptr || finished_.finish != FinishReason::length) text += "\"incomplete_details\":null,";
  if (options_.previous_response_id.empty()) text += "\"previous_response_id\":null,";
  return text + options_.told_back + "}";
}

}  // namespace

std::shared_ptr<EventSink> make_responses_reply(ResponsesReplyOptions options,
                                                std::shared_ptr<http::Exchange> exchange) {
  return std::make_shared<ResponsesReply>(std::move(options), std::move(exchange));
}

}  // namespace ds4::server::api
