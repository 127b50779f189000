#include "server/api/thinking_fields.hpp"

#include <algorithm>

namespace ds4::server::api {
namespace {

constexpr size_t kLargestBudget = size_t{1} << 31;

struct Wishes {
  bool off = false;
  bool on = false;
  std::optional<ThinkMode> effort;
  std::optional<size_t> budget_tokens;

  void toggle(std::optional<bool> enabled) {
    if (!enabled) return;
    (*enabled ? on : off) = true;
  }
};

void read_effort(const Fields& fields, std::string_view name, EffortProfile profile, Wishes& wishes) {
  const auto effort = fields.string(name);
  if (!effort) return;
  const auto mode = think_mode_of_effort(*effort, profile);
  if (!mode) {
    fields.wrong_value(name, "must be one of none, minimal, low, medium, high, xhigh, max");
  } else if (*mode == ThinkMode::none) {
    wishes.off = true;
  } else {
    wishes.effort = mode;
  }
}

void read_budget(const Fields& fields, std::string_view name, Wishes& wishes) {
  const auto budget = fields.count(name, 0, kLargestBudget);
  if (budget == size_t{0}) {
    wishes.off = true;
  } else if (budget) {
    wishes.budget_tokens = budget;
  }
}

void read_thinking_object(const Fields& thinking, Wishes& wishes) {
  if (const auto type = thinking.string("type")) {
    if (*type == "disabled") {
      wishes.off = true;
    } else if (*type == "enabled" || *type == "adaptive" || *type == "auto") {
      wishes.on = true;
    } else {
      thinking.wrong_value("type", "must be enabled, disabled or adaptive");
    }
  }
  read_budget(thinking, "budget_tokens", wishes);
}

void read_reasoning_object(const Fields& reasoning, EffortProfile profile, Wishes& wishes) {
  read_effort(reasoning, "effort", profile, wishes);
  wishes.toggle(reasoning.boolean("enabled"));
  read_budget(reasoning, "max_tokens", wishes);
}

/// A field that is a switch or, if it is of `other` kind, something more.
bool read_switch(const Fields& fields, std::string_view name, JsonValue::Kind other, Wishes& wishes) {
  const auto value = fields.find(name);
  if (!value) return false;
  if (value->is(other)) return true;
  if (value->is(JsonValue::Kind::boolean)) {
    wishes.toggle(value->boolean());
  } else {
    fields.wrong_type(
        name, other == JsonValue::Kind::object ? "true, false or an object" : "true, false or an effort");
  }
  return false;
}

}  // namespace

std::optional<ThinkMode> think_mode_of_effort(std::string_view effort, EffortProfile profile) {
  constexpr std::string_view kLevels[] = {"minimal", "low", "medium", "high", "xhigh", "max"};
  if (effort == "none") return ThinkMode::none;
  if (std::find(std::begin(kLevels), std::end(kLevels), effort) == std::end(kLevels)) return std::nullopt;
  const bool maximum = effort == "max";
  if (profile == EffortProfile::preview) return maximum ? ThinkMode::max : ThinkMode::high;
  if (maximum) return ThinkMode::beyond;
  return effort == "high" || effort == "xhigh" ? ThinkMode::max : ThinkMode::high;
}

Thinking read_thinking(const Fields& body, std::string_view model, EffortProfile profile,
                       bool effort_decides) {
  Wishes wishes;
  if (read_switch(body, "thinking", JsonValue::Kind::object, wishes)) {
    read_thinking_object(*body.object("thinking"), wishes);
  }
  if (read_switch(body, "think", JsonValue::Kind::string, wishes))
    read_effort(body, "think", profile, wishes);
  wishes.toggle(body.boolean("enable_thinking"));
  if (const auto template_fields = body.object("chat_template_kwargs")) {
    wishes.toggle(template_fields->boolean("enable_thinking"));
    wishes.toggle(template_fields->boolean("thinking"));
    read_effort(*template_fields, "reasoning_effort", profile, wishes);
  }
  read_effort(body, "reasoning_effort", profile, wishes);
  if (read_switch(body, "reasoning", JsonValue::Kind::object, wishes)) {
    read_reasoning_object(*body.object("reasoning"), profile, wishes);
  }
  if (const auto output = body.object("output_config")) read_effort(*output, "effort", profile, wishes);
  read_budget(body, "thinking_budget", wishes);

  if (!wishes.on && !(effort_decides && wishes.effort) && model == "deepseek-chat") wishes.off = true;
  Thinking thinking;
  if (wishes.off) {
    thinking.mode = ThinkMode::none;
    return thinking;
  }
  thinking.mode = wishes.effort.value_or(ThinkMode::high);
  thinking.budget_tokens = wishes.budget_tokens;
  return thinking;
}

const char* name_of(ThinkMode mode) {
  switch (mode) {
    case ThinkMode::none:
      return "none";
    case ThinkMode::high:
      return "high";
    case ThinkMode::max:
      return "max";
    case ThinkMode::beyond:
      return "beyond";
  }
  return "";
}

http::HeaderList thinking_header(const Thinking& thinking) {
  return {{"x-ds4-thinking", name_of(thinking.mode)}};
}

}  // namespace ds4::server::api
