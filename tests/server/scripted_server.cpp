// `ds4-server` without a model: ds4-scripted-server RULES [options of ds4-server].
// RULES is a JSON file: {"replies": [{"when": text, "text": text, "endless": false, "no_end": false}],
// "pass_us": 0, "prompt_token_us": 0, "breaks_at": text}; after a prompt with the last, if it is given, every
// pass fails. -m names the model file whose tokenizer is used.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_search.hpp"
#include "options.hpp"
#include "service.hpp"
#include "support/scripted_backend.hpp"

namespace ds4::server {
namespace {

namespace json = boost::json;

struct Rules {
  std::vector<testing::ScriptedReply> replies;
  std::chrono::microseconds per_pass{0}, per_prompt_token{0};
  std::string breaks_at;
};

bool flag(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->as_bool();
}

std::chrono::microseconds duration(const json::object& object, const char* name) {
  const json::value* value = object.if_contains(name);
  return std::chrono::microseconds(value == nullptr ? 0 : value->as_int64());
}

/// Throws if the rules are not as they should be.
Rules parse_rules(const std::string& text) {
  const json::value root = json::parse(text);
  Rules rules;
  for (const json::value& element : root.at("replies").as_array()) {
    const json::object& reply = element.as_object();
    rules.replies.push_back({json::value_to<std::string>(reply.at("when")),
                             json::value_to<std::string>(reply.at("text")), flag(reply, "endless"),
                             flag(reply, "no_end")});
  }
  rules.per_pass = duration(root.as_object(), "pass_us");
  rules.per_prompt_token = duration(root.as_object(), "prompt_token_us");
  if (const json::value* words = root.as_object().if_contains("breaks_at"))
    rules.breaks_at = words->as_string();
  return rules;
}

Result<void> run(const std::string& rules_path, std::span<const char* const> arguments) {
  DS4_ASSIGN(const Options options, parse_options(arguments));
  ShutdownSignals signals;
  Log log(options.log_level, options.log_json);
  DS4_ASSIGN(const auto model, cli::find_model(options.model_path));
  DS4_ASSIGN(const std::string text, cli::read_file(rules_path));
  Rules rules = parse_rules(text);
  DS4_ASSIGN(ServiceFiles files, open_service_files(options));
  testing::ScriptedOptions script;
  script.next = testing::scripted_assistant(testing::load_tokenizer(model.path), std::move(rules.replies));
  std::atomic<size_t> failing_passes{0};
  script.failing_passes = &failing_passes;
  if (!rules.breaks_at.empty()) {
    const std::vector<Token> words = testing::load_tokenizer(model.path)->encode_plain(rules.breaks_at);
    script.next = [next = std::move(script.next), words, &failing_passes](std::span<const Token> history) {
      const auto found = std::search(history.begin(), history.end(), words.begin(), words.end());
      if (found != history.end()) failing_passes = SIZE_MAX;
      return next(history);
    };
  }
  script.per_pass = rules.per_pass;
  script.per_prompt_token = rules.per_prompt_token;
  const Engine engine = testing::make_scripted_engine(model.path, std::move(script));
  return serve_until_signal(engine, options, std::move(files), log, signals);
}

}  // namespace
}  // namespace ds4::server

int main(int argc, char** argv) {
  using namespace ds4;
  cli::set_program_name("ds4-scripted-server");
  cli::install_signal_handlers();
  if (argc < 2) {
    cli::say_error("usage: ds4-scripted-server RULES [options of ds4-server]");
    return cli::exit_usage;
  }
  try {
    const std::vector<const char*> arguments(argv + 2, argv + argc);
    const auto result = server::run(argv[1], arguments);
    if (result) return cli::exit_success;
    cli::say_error(result.error().message);
  } catch (const std::exception& error) {
    cli::say_error(error.what());
  }
  return cli::exit_failure;
}
