#include "options.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "common/help_page.hpp"
#include "common/option_table.hpp"
#include "ds4/version.hpp"

namespace ds4::server {
namespace {

using cli::set_integer;
using cli::set_path;

enum class Section { server, runtime, access, conversations, disk, observing };

constexpr uint64_t most_disk_mib = uint64_t{1} << 40;
using Row = cli::OptionRow<Options, Section>;

constexpr const char* log_levels[] = {"debug", "info", "warning", "error"};

Result<void> set_log_level(std::string& level, const std::string& name) {
  if (std::find(std::begin(log_levels), std::end(log_levels), name) == std::end(log_levels)) {
    return fail(ErrorCode::invalid_argument,
                "there is no log level '{}'; there are: debug, info, warning, error", name);
  }
  level = name;
  return {};
}

Result<void> set_effort_profile(EffortProfile& profile, const std::string& name) {
  if (name != "preview" && name != "0731") {
    return fail(ErrorCode::invalid_argument, "there is no effort profile '{}'; there are: preview, 0731",
                name);
  }
  profile = name == "preview" ? EffortProfile::preview : EffortProfile::release_0731;
  return {};
}

Result<void> set_key(std::string& key, const std::string& value) {
  if (value.empty()) return fail(ErrorCode::invalid_argument, "--api-key needs a key");
  key = value;
  return {};
}

bool plain_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '/' && c != '?' && c != '#' && c != '@';
  });
}

Result<void> add_allowed_host(std::vector<std::string>& hosts, const std::string& name) {
  if (!plain_name(name)) {
    return fail(ErrorCode::invalid_argument,
                "--allowed-host needs the name of a host, with a port or without, not '{}'", name);
  }
  hosts.push_back(name);
  return {};
}

Result<void> set_origin(std::string& origin, const std::string& value) {
  const size_t host = value.find("://");
  const bool whole = host != std::string::npos && plain_name(std::string_view(value).substr(0, host)) &&
                     plain_name(std::string_view(value).substr(host + 3));
  if (value != "*" && !whole) {
    return fail(ErrorCode::invalid_argument,
                "--cors-origin needs an origin such as https://example.com or http://localhost:3000, without "
                "a path, not '{}'",
                value);
  }
  origin = value;
  return {};
}

// clang-format off: a table reads best as one
constexpr auto server_rows = std::to_array<Row>({
    {Section::server, "-c", "--ctx", "N", "context size of a conversation in tokens [32768]",
     [](Options& o, const std::string& v) { return set_integer(o.context_tokens, "--ctx", v); }},
    {Section::server, "-n", "--tokens", "N", "tokens of an answer at most, if the client does not say [393216]",
     [](Options& o, const std::string& v) { return set_integer(o.max_tokens, "--tokens", v); }},
    {Section::server, "", "--host", "HOST", "address to listen on: IPv4, IPv6 or localhost [127.0.0.1]",
     [](Options& o, const std::string& v) { return set_path(o.host, "--host", v); }},
    {Section::server, "", "--port", "N", "port to listen on [8000]; 0 takes a free one",
     [](Options& o, const std::string& v) { return set_integer(o.port, "--port", v, 0, 65535); }},
    {Section::server, "", "--chdir", "DIR", "folder to change to before anything else",
     [](Options& o, const std::string& v) { return set_path(o.folder, "--chdir", v); }},
    {Section::server, "", "--effort-profile", "NAME", "what reasoning efforts mean to the checkpoint: preview or 0731 [preview]",
     [](Options& o, const std::string& v) { return set_effort_profile(o.effort_profile, v); }},
    {Section::server, "", "--drain-seconds", "N", "how long answers may go on after SIGTERM or Ctrl+C [60]",
     [](Options& o, const std::string& v) { return set_integer(o.drain_seconds, "--drain-seconds", v, 0, 86400); }},
    {Section::server, "", "--memory", nullptr, "print what would be taken, and stop",
     [](Options& o, const std::string&) { o.memory = true; return Result<void>(); }},
    {Section::server, "", "--version", nullptr, "print the version",
     [](Options& o, const std::string&) { o.version = true; return Result<void>(); }},
});

constexpr auto access_rows = std::to_array<Row>({
    {Section::access, "", "--api-key", "KEY", "key that requests have to show; --api-key-file does not show up in lists of processes",
     [](Options& o, const std::string& v) { return set_key(o.api_key, v); }},
    {Section::access, "", "--api-key-file", "FILE", "file with such keys, one a line",
     [](Options& o, const std::string& v) { return set_path(o.api_key_path, "--api-key-file", v); }},
    {Section::access, "", "--allow-unauthenticated", nullptr, "listen beyond this machine without a key",
     [](Options& o, const std::string&) { o.allow_unauthenticated = true; return Result<void>(); }},
    {Section::access, "", "--allowed-host", "NAME", "further name that requests may call this server by; * for any; may be repeated",
     [](Options& o, const std::string& v) { return add_allowed_host(o.allowed_hosts, v); }},
    {Section::access, "", "--cors", nullptr, "let web pages from anywhere use this server",
     [](Options& o, const std::string&) { return set_path(o.cors_origin, "--cors", "*"); }},
    {Section::access, "", "--cors-origin", "ORIGIN", "let web pages of this origin use this server",
     [](Options& o, const std::string& v) { return set_origin(o.cors_origin, v); }},
    {Section::access, "", "--tls-cert", "FILE", "certificate chain (PEM), with --tls-key: HTTPS",
     [](Options& o, const std::string& v) { return set_path(o.tls_certificate_path, "--tls-cert", v); }},
    {Section::access, "", "--tls-key", "FILE", "its private key (PEM)",
     [](Options& o, const std::string& v) { return set_path(o.tls_key_path, "--tls-key", v); }},
});

constexpr auto conversation_rows = std::to_array<Row>({
    {Section::conversations, "", "--sessions", "N", "conversations kept ready in memory [8]",
     [](Options& o, const std::string& v) { return set_integer(o.sessions, "--sessions", v, 1, 4096); }},
    {Section::conversations, "", "--session-memory-mb", "N", "memory for them in MiB [no limit]",
     [](Options& o, const std::string& v) { return set_integer(o.session_memory_mib, "--session-memory-mb", v); }},
    {Section::conversations, "", "--queue", "N", "requests that may wait; more are refused [256]",
     [](Options& o, const std::string& v) { return set_integer(o.queue, "--queue", v, 1, 100000); }},
    {Section::conversations, "", "--disable-exact-dsml-tool-replay", nullptr, "write earlier tool calls as clients send them, not as they were sampled",
     [](Options& o, const std::string&) { o.exact_replay = false; return Result<void>(); }},
    {Section::conversations, "", "--keep-volatile-text", nullptr, "show the model what clients change with every request for no reason (docs/decisions.md)",
     [](Options& o, const std::string&) { o.keep_volatile_text = true; return Result<void>(); }},
    {Section::conversations, "", "--tool-memory-max-ids", "N", "sampled replies remembered at most [100000]",
     [](Options& o, const std::string& v) { return set_integer(o.tool_memory_ids, "--tool-memory-max-ids", v); }},
    {Section::conversations, "", "--tool-reminder-tokens", "N", "remind of how tools are called in prompts longer than this; 0: never [32768]",
     [](Options& o, const std::string& v) { return set_integer(o.tool_reminder_tokens, "--tool-reminder-tokens", v, 0, 1000000000); }},
    {Section::conversations, "", "--accept-promises", nullptr, "let answers end that announce an action and have no call",
     [](Options& o, const std::string&) { o.hold_to_promises = false; return Result<void>(); }},
});

constexpr auto disk_rows = std::to_array<Row>({
    {Section::disk, "", "--kv-disk-dir", "DIR", "keep conversations in this folder beyond memory and restarts; they may be confidential [off]",
     [](Options& o, const std::string& v) { return set_path(o.kv_folder, "--kv-disk-dir", v); }},
    {Section::disk, "", "--kv-disk-space-mb", "N", "space for them in MiB [4096]",
     [](Options& o, const std::string& v) { return set_integer(o.kv_space_mib, "--kv-disk-space-mb", v, 1, most_disk_mib); }},
    {Section::disk, "", "--kv-cache-min-tokens", "N", "nothing shorter is written or read [512]",
     [](Options& o, const std::string& v) { return set_integer(o.kv_policy.min_tokens, "--kv-cache-min-tokens", v); }},
    {Section::disk, "", "--kv-cache-cold-max-tokens", "N", "longest prompt whose beginning is written while it is evaluated [30000]; 0: none is",
     [](Options& o, const std::string& v) { return set_integer(o.kv_policy.cold_max_tokens, "--kv-cache-cold-max-tokens", v, 0); }},
    {Section::disk, "", "--kv-cache-continued-interval-tokens", "N", "how often a growing conversation is written [10000]; 0: at the end of replies only",
     [](Options& o, const std::string& v) { return set_integer(o.kv_policy.continued_interval_tokens, "--kv-cache-continued-interval-tokens", v, 0); }},
    {Section::disk, "", "--kv-cache-boundary-trim-tokens", "N", "tokens at the end of a prompt that its beginning leaves out [32]",
     [](Options& o, const std::string& v) { return set_integer(o.kv_policy.boundary_trim_tokens, "--kv-cache-boundary-trim-tokens", v, 0); }},
    {Section::disk, "", "--kv-cache-boundary-align-tokens", "N", "its length is a multiple of this [2048]; 0: any",
     [](Options& o, const std::string& v) { return set_integer(o.kv_policy.boundary_align_tokens, "--kv-cache-boundary-align-tokens", v, 0); }},
    {Section::disk, "", "--kv-cache-reject-different-quant", nullptr, "has no effect: states of another model file are never used",
     [](Options&, const std::string&) { return Result<void>(); }},
});

constexpr auto observing_rows = std::to_array<Row>({
    {Section::observing, "", "--trace", "FILE", "write every request, prompt and answer to a file; they may be confidential",
     [](Options& o, const std::string& v) { return set_path(o.trace_path, "--trace", v); }},
    {Section::observing, "", "--log-level", "LEVEL", "debug, info, warning or error [info]",
     [](Options& o, const std::string& v) { return set_log_level(o.log_level, v); }},
    {Section::observing, "", "--log-json", nullptr, "one JSON object a line",
     [](Options& o, const std::string&) { o.log_json = true; return Result<void>(); }},
});
// clang-format on

constexpr auto all_rows = cli::join_rows(
    server_rows, cli::program_rows<Options, Section>, cli::drafter_rows<Options, Section>,
    cli::steering_rows<Options, Section>, access_rows, conversation_rows, disk_rows, observing_rows);

}  // namespace

Result<Options> parse_options(std::span<const char* const> arguments) {
  Options options;
  const std::span<const Row> rows = all_rows;
  DS4_TRY(cli::read_arguments(rows, arguments, options));
  if (options.help || options.version) return options;
  DS4_TRY(cli::steering_scales(options));
  if (options.tls_certificate_path.empty() != options.tls_key_path.empty()) {
    return fail(ErrorCode::invalid_argument, "--tls-cert and --tls-key go together");
  }
  if (store::check(options.kv_policy) != nullptr) {
    return fail(ErrorCode::invalid_argument,
                "--kv-cache-cold-max-tokens must be 0 or at least --kv-cache-min-tokens");
  }
  return options;
}

std::string help_page(bool color) {
  cli::HelpPage page(color);
  page.line(fmt::format("ds4-server {} - DeepSeek V4 behind the OpenAI and Anthropic APIs", version));
  page.title("Usage");
  page.line("  ds4-server [options]                 answers on http://127.0.0.1:8000");
  page.line("  ds4-server -m FILE -c 131072         another model file, longer conversations");
  page.options<Options, Section>("Server", all_rows, Section::server);
  page.options<Options, Section>("Model and runtime", all_rows, Section::runtime);
  page.options<Options, Section>("Access", all_rows, Section::access);
  page.options<Options, Section>("Conversations", all_rows, Section::conversations);
  page.options<Options, Section>("Conversations on disk", all_rows, Section::disk);
  page.options<Options, Section>("Logs", all_rows, Section::observing);
  page.title("Endpoints");
  page.line(
      "  /v1/chat/completions  /v1/completions  /v1/responses  /v1/messages  /v1/messages/count_tokens");
  page.line("  /v1/models  /health  /metrics  /props  /tokenize  /detokenize");
  return page.take();
}

std::string short_help() {
  return "usage: ds4-server [options]; ds4-server --help lists them\n";
}

}  // namespace ds4::server
