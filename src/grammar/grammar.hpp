// What an answer may look like: JSON that obeys a schema, or tool calls (docs/structured-output.md).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ds4/error.hpp"

namespace ds4::grammar {

struct Automaton;

/// A tool that may be called. `parameters`: raw text of a JSON schema; empty for a tool without parameters.
struct ToolSignature {
  std::string name;
  std::string parameters;
};

/// The texts that may be written. Immutable; may be shared by threads. What a schema asks for and cannot be
/// had is an error whose message names the field, the keyword and the place:
/// "response_format: the schema keyword 'not' is not supported at /properties/a".
class Grammar {
 public:
  /// Any JSON object.
  static Result<std::shared_ptr<const Grammar>> json_object();
  /// A value that obeys the schema (raw JSON text). `strict`: every property is written, as in OpenAI's
  /// strict mode. `field`: what error messages begin with.
  static Result<std::shared_ptr<const Grammar>> json_schema(std::string_view schema, bool strict,
                                                            std::string_view field = "response_format");
  /// A block of tool calls (docs/chat.md §5), beginning with its two newlines: one call, or with `parallel`
  /// one or more.
  static Result<std::shared_ptr<const Grammar>> tool_calls(std::span<const ToolSignature> tools,
                                                           bool parallel);

  const Automaton& automaton() const { return *automaton_; }

  explicit Grammar(std::unique_ptr<const Automaton> automaton);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

 private:
  std::unique_ptr<const Automaton> automaton_;
};

}  // namespace ds4::grammar
