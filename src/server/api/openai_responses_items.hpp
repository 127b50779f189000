// The items that a response consists of, and the free text that a custom tool is called with.
#pragma once

#include <string>
#include <string_view>

#include "server/api/json_writer.hpp"
#include "server/api/openai_responses.hpp"

namespace ds4::server::api {

struct ResponseItem {
  enum class Kind { reasoning, message, call } kind = Kind::message;
  std::string id;
  std::string text;     // of reasoning and messages; of a call: its arguments, or the input of a custom tool
  std::string call_id;  // call, as all that follows
  ResponseTool tool;
};

/// The item as it is announced: without its text, in progress.
void write_announced_item(JsonWriter& json, const ResponseItem& item);
/// `status`: "completed", "incomplete".
void write_item(JsonWriter& json, const ResponseItem& item, const char* status);
/// {"type":"output_text","text":...,"annotations":[]}
void write_text_part(JsonWriter& json, std::string_view text);

/// The input of a custom tool that was called with these arguments: its parameter `input`, else the only text
/// among them, else the arguments as they are.
std::string custom_input(const std::string& arguments);

/// Reads the same input while the arguments arrive.
class CustomInputReader {
 public:
  /// The text that is certain now. Nothing, ever, if the arguments do not begin with the input.
  std::string push(std::string_view arguments);
  /// All of it so far.
  const std::string& text() const { return text_; }

 private:
  enum class State { before, inside, over } state_ = State::before;
  std::string pending_;
  std::string text_;
};

}  // namespace ds4::server::api
