// Text that clients change from request to request although nothing that matters to the model has changed. It
// stands early in the prompt, so every turn would be computed anew.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json_fields.hpp"

namespace ds4::server::api {

struct VolatileTextOptions {
  bool drop = true;
  /// Lines at the beginning of a system text that begin so are left out.
  std::vector<std::string> line_prefixes = {"x-anthropic-"};
  /// Members of a tool that are meant for the API, not for the model; left out of the text it is shown.
  std::vector<std::string> tool_members = {"cache_control"};
  /// Told what was left out, for the log. Called on the threads that read requests.
  std::function<void(std::string_view)> on_drop;
};

/// Without the volatile lines at its beginning.
std::string_view without_volatile_lines(std::string_view text, const VolatileTextOptions& options);

/// The text of an object without these members; every other byte stays as it was sent. Precondition: `tool`
/// is an object.
std::string without_volatile_members(const JsonValue& tool, const VolatileTextOptions& options);

}  // namespace ds4::server::api
