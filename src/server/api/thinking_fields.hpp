// Every spelling in which clients switch reasoning on and off and say how much of it they want.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/api/json_fields.hpp"
#include "server/generation.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// What an effort means to a checkpoint: none, minimal, low, medium, high, xhigh or max; nothing for other
/// words. preview: up to xhigh ThinkMode::high, then max. release_0731: up to medium ThinkMode::high, high
/// and xhigh max, max beyond.
std::optional<ThinkMode> think_mode_of_effort(std::string_view effort, EffortProfile profile);

/// Reads `thinking` (true, false, {type, budget_tokens}), `think`, `enable_thinking`, `chat_template_kwargs`,
/// `reasoning_effort`, `reasoning` ({effort, enabled, max_tokens}), `output_config` ({effort}),
/// `thinking_budget`. Any "off" wins. If none of them decides, the model names deepseek-chat and
/// deepseek-reasoner do; an effort alone decides only if `effort_decides`.
Thinking read_thinking(const Fields& body, std::string_view model, EffortProfile profile,
                       bool effort_decides);

/// "none", "high", "max", "beyond": what was applied.
const char* name_of(ThinkMode mode);
/// The header that tells it: x-ds4-thinking.
http::HeaderList thinking_header(const Thinking& thinking);

}  // namespace ds4::server::api
