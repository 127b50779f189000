#include "service.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "server/api/error_body.hpp"
#include "server/api/routes.hpp"
#include "server/disk_cache.hpp"
#include "server/http/access_rules.hpp"
#include "server/http/server.hpp"
#include "server/scheduler.hpp"
#include "store/engine_state.hpp"

namespace ds4::server {
namespace {

using namespace std::chrono_literals;

Result<std::vector<std::string>> read_keys(const Options& options) {
  std::vector<std::string> keys;
  if (!options.api_key.empty()) keys.push_back(options.api_key);
  if (options.api_key_path.empty()) return keys;
  DS4_ASSIGN(const std::string text, cli::read_file(options.api_key_path));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    key.erase(key.find_last_not_of(" \t\r") + 1);
    if (!key.empty()) keys.push_back(std::move(key));
    begin = end + 1;
  }
  if (keys.empty()) return fail(ErrorCode::format, "{}: there is no key in it", options.api_key_path);
  return keys;
}

/// Of the HTTP layer, but for its handlers.
http::ServerOptions http_options(const Options& options, std::vector<std::string> keys) {
  http::ServerOptions http;
  http.host = options.host;
  http.port = options.port;
  http.api_keys = std::move(keys);
  http.allow_unauthenticated = options.allow_unauthenticated;
  http.cors_origin = options.cors_origin;
  http.allowed_hosts = options.allowed_hosts;
  http.tls_certificate_file = options.tls_certificate_path;
  http.tls_key_file = options.tls_key_path;
  return http;
}

// What is written to disk at the end may take this long beyond --drain-seconds.
constexpr auto disk_patience = 30s;

/// "deepseek-v4-flash" for a Flash model, the variant's name for others.
ServerInfo describe(const Engine& engine, const Options& options) {
  std::string variant = engine.info().variant;
  std::transform(variant.begin(), variant.end(), variant.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  ServerInfo info;
  info.model_id = fmt::format("deepseek-v4-{}", variant);
  info.model_name = fmt::format("DeepSeek V4 {}", engine.info().variant);
  info.context_tokens = options.context_tokens;
  info.default_max_tokens = options.max_tokens;
  info.effort_profile = options.effort_profile;
  info.created = std::time(nullptr);
  info.infill = engine.tokenizer().find("<｜fim▁begin｜>") >= 0;
  return info;
}

Log::Fields fields_of(const RequestRecord& record) {
  Log::Fields fields{
      {"request", fmt::to_string(record.id)},
      {"kind", quoted(record.kind)},
      {"outcome", quoted(record.outcome)},
      {"prompt", fmt::to_string(record.usage.prompt_tokens)},
      {"cached", fmt::to_string(record.usage.cached_tokens)},
      {"miss", quoted(miss_name(record.miss))},
  };
  if (record.miss == Miss::diverged || record.miss == Miss::busy) {
    fields.push_back({"shared", fmt::to_string(record.diverged_at)});
  }
  if (record.disk != DiskResult::unused) {
    fields.push_back({"disk", quoted(disk_result_name(record.disk))});
    fields.push_back({"disk_s", fmt::format("{:.3f}", record.disk_seconds)});
  }
  fields.push_back({"generated", fmt::to_string(record.usage.completion_tokens)});
  fields.push_back({"reasoning", fmt::to_string(record.usage.reasoning_tokens)});
  if (record.tool_calls > 0) fields.push_back({"calls", fmt::to_string(record.tool_calls)});
  if (record.calls_changed > 0) {
    fields.push_back({"calls_changed", fmt::to_string(record.calls_changed)});
  }
  if (record.tool_reminders > 0) fields.push_back({"reminders", fmt::to_string(record.tool_reminders)});
  if (record.promised > 0) fields.push_back({"promised", fmt::to_string(record.promised)});
  if (record.closed_at_limit + record.closed_in_loop > 0) {
    fields.push_back({"closed", quoted(record.closed_in_loop > 0 ? "loop" : "limit")});
  }
  fields.push_back({"queue_s", fmt::format("{:.3f}", record.queue_seconds)});
  fields.push_back({"prefill_s", fmt::format("{:.3f}", record.prefill_seconds)});
  fields.push_back({"decode_s", fmt::format("{:.3f}", record.decode_seconds)});
  if (!record.error.empty()) fields.push_back({"error", quoted(record.error)});
  return fields;
}

/// Everything that runs, in the order in which it has to end.
class Service {
 public:
  /// `store` may be null.
  Service(const Engine& engine, const Options& options, Log& log, TraceFile* trace,
          std::unique_ptr<store::StateStore> store)
      : log_(log),
        trace_(trace),
        disk_(store == nullptr ? nullptr : std::make_unique<DiskCache>(engine, std::move(store), metrics_)),
        scheduler_(engine, describe(engine, options), scheduler_options(engine, options), metrics_),
        routes_(scheduler_, [this] { return metrics_.render(); }, api_options(options)) {
    metrics_.gauge("ds4_http_connections", "Open connections.", [this] {
      const http::Server* server = listening_;
      return server != nullptr ? static_cast<double>(server->counters().connections_open) : 0;
    });
  }

  Result<void> listen(const Options& options, std::vector<std::string> keys) {
    http::ServerOptions http = http_options(options, std::move(keys));
    http.inline_handler = api::Routes::answer_inline;
    http.error_body = api::error_body_for_path;
    http.on_answered = [this](const http::AccessRecord& record) { log_access(record); };
    DS4_ASSIGN(server_,
               http::Server::start(std::move(http), [this](const http::Request& request,
                                                           std::shared_ptr<http::Exchange> exchange) {
                 routes_.handle(request, std::move(exchange));
               }));
    listening_ = server_.get();
    return {};
  }
  uint16_t port() const { return server_->port(); }

  /// Why nothing is computed any more; empty as long as all is well. After drain().
  const std::string& broken() const { return broken_; }

  /// Lets what runs come to its end. A second signal leaves at once.
  void drain(ShutdownSignals& signals, std::chrono::seconds limit) {
    scheduler_.refuse();
    server_->stop_accepting();
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      if (scheduler_.wait_idle(0ms) && server_->wait_drained(0ms)) break;
      if (signals.again(50ms)) std::_Exit(cli::exit_interrupted);
    }
    scheduler_.stop();
    while (disk_ != nullptr && std::chrono::steady_clock::now() < end + disk_patience) {
      if (signals.again(0ms)) std::_Exit(cli::exit_interrupted);
      if (disk_->drain(20ms) && !scheduler_.save_next()) break;
    }
    server_->wait_drained(2s);
    server_->stop();
  }

 private:
  SchedulerOptions scheduler_options(const Engine& engine, const Options& options) {
    SchedulerOptions result;
    result.pool.context = options.context_tokens;
    result.pool.sessions = options.sessions;
    result.pool.bytes = options.session_memory_mib << 20;
    result.queue_limit = options.queue;
    result.disk = disk_.get();
    result.memory.keys = options.exact_replay ? options.tool_memory_ids : 0;
    result.prompt.tool_reminder_tokens = options.tool_reminder_tokens;
    result.hold_to_promises = options.hold_to_promises;
    result.speculation = cli::speculation_options(options);
    if (engine.info().steering) {
      result.steering = cli::steering_scales(options, engine.info().steering_component).value_or({});
    }
    result.on_request = [this](const RequestRecord& record) {
      log_.write(record.error.empty() ? LogLevel::info : LogLevel::warning, "answered", fields_of(record));
      if (trace_ != nullptr) note_trace(trace_->end(record));
    };
    if (trace_ != nullptr) {
      result.on_begin = [this](const RequestRecord& record) { note_trace(trace_->begin(record)); };
    }
    result.on_broken = [this](const std::string& why) {
      log_.write(LogLevel::error, "the engine does not work any more", {{"error", quoted(why)}});
      broken_ = why;
      kill(getpid(), SIGTERM);  // the way everything ends
    };
    return result;
  }
  api::ApiOptions api_options(const Options& options) {
    api::ApiOptions result;
    api::VolatileTextOptions& text = result.messages.volatile_text;
    text.drop = !options.keep_volatile_text;
    text.on_drop = [this](std::string_view dropped) {
      // Every request has some: the first one tells that it happens.
      const bool first = !told_of_volatile_text_.exchange(true);
      log_.write(first ? LogLevel::info : LogLevel::debug,
                 "left out of the prompt, as it changes for no reason", {{"text", quoted(dropped)}});
    };
    return result;
  }

  void note_trace(bool written) {
    if (written || std::exchange(trace_failed_, true)) return;
    log_.write(LogLevel::error, "the trace file takes no more; tracing has ended");
  }

  void log_access(const http::AccessRecord& record) {
    const bool refused = record.status >= 400;
    if (!refused && !log_.enabled(LogLevel::debug)) return;
    log_.write(refused ? LogLevel::info : LogLevel::debug, "http",
               {{"peer", quoted(record.peer)},
                {"method", quoted(record.method)},
                {"path", quoted(record.path)},
                {"status", fmt::to_string(record.status)},
                {"ms", fmt::format("{:.1f}", static_cast<double>(record.duration.count()) / 1000)}});
  }

  Log& log_;
  TraceFile* trace_;
  bool trace_failed_ = false;
  std::string broken_;  // the scheduler's thread's, until that has ended
  std::atomic<bool> told_of_volatile_text_ = false;
  Metrics metrics_;
  std::unique_ptr<DiskCache> disk_;
  Scheduler scheduler_;
  api::Routes routes_;
  std::unique_ptr<http::Server> server_;
  std::atomic<const http::Server*> listening_{nullptr};  // requests are answered before server_ is set
};

Result<std::unique_ptr<store::StateStore>> open_disk_store(const Engine& engine, const Options& options,
                                                           Log& log) {
  if (options.kv_folder.empty()) return std::unique_ptr<store::StateStore>();
  std::string numerics;
  if (engine.info().steering) {
    const SteeringScales scales =
        cli::steering_scales(options, engine.info().steering_component).value_or({});
    numerics = fmt::format("steering {} {}", scales.feed_forward, scales.attention);
  }
  DS4_ASSIGN(auto fingerprint, store::state_fingerprint(engine, numerics));
  auto store = store::store_options(engine.state_layout(), std::move(fingerprint));
  store.directory.directory = options.kv_folder;
  store.directory.budget_bytes = options.kv_space_mib << 20;
  store.directory.log = [&log](std::string_view line) { log.write(LogLevel::warning, line); };
  store.policy = options.kv_policy;
  auto opened = store::StateStore::open(std::move(store));
  if (!opened && opened.error().code == ErrorCode::invalid_argument) return opened;
  if (!opened) {  // a disk that is broken, read-only or away keeps nobody from answering
    log.write(LogLevel::error, fmt::format("conversations are not kept on disk: {}", opened.error().message));
    return std::unique_ptr<store::StateStore>();
  }
  const store::StoreStats stats = (*opened)->stats();
  log.write(LogLevel::info,
            fmt::format("conversations on disk: {}, {} states in {:.1f} of {} MiB", options.kv_folder,
                        stats.entries, static_cast<double>(stats.bytes) / (1 << 20), options.kv_space_mib));
  return opened;
}

std::string defaults_sentence(const Options& options) {
  const SamplingParams defaults;
  return fmt::format(
      "defaults: temperature {}, top_p {}, min_p {}, top_k off, {} tokens at most; {} conversations kept, {} "
      "requests may wait",
      defaults.temperature, defaults.top_p, defaults.min_p,
      std::min<uint64_t>(options.max_tokens, options.context_tokens), options.sessions, options.queue);
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  sigemptyset(&set_);
  sigaddset(&set_, SIGINT);
  sigaddset(&set_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

void ShutdownSignals::wait() {
  int number = 0;
  while (sigwait(&set_, &number) != 0) {
  }
}

bool ShutdownSignals::again(std::chrono::milliseconds timeout) {
  const timespec limit{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  return sigtimedwait(&set_, nullptr, &limit) > 0;
}

ShutdownSignals::EndProcess::EndProcess(ShutdownSignals& signals)
    : thread_([this, &signals] {
        while (!over_) {
          if (signals.again(50ms)) std::_Exit(cli::exit_interrupted);
        }
      }) {}

ShutdownSignals::EndProcess::~EndProcess() {
  over_ = true;
  thread_.join();
}

Result<ServiceFiles> open_service_files(const Options& options) {
  ServiceFiles files;
  DS4_ASSIGN(files.keys, read_keys(options));
  // The HTTP layer refuses it as well, but it knows no options.
  if (files.keys.empty() && !options.allow_unauthenticated && !http::is_loopback_host(options.host)) {
    return fail(ErrorCode::invalid_argument,
                "everybody who reaches {} could use the server without an API key: name keys with "
                "--api-key-file, or say --allow-unauthenticated",
                options.host);
  }
  DS4_TRY(http::Server::check(http_options(options, files.keys)));
  if (!options.trace_path.empty()) {
    DS4_ASSIGN(files.trace, TraceFile::open(options.trace_path));
  }
  return files;
}

Result<void> serve_until_signal(const Engine& engine, const Options& options, ServiceFiles files, Log& log,
                                ShutdownSignals& signals) {
  // Whether a conversation of this size is possible is said now, not at the first request.
  DS4_TRY(engine.create_session(options.context_tokens));
  log.write(LogLevel::info, cli::context_sentence(engine, options.context_tokens));
  if (engine.info().steering) log.write(LogLevel::info, cli::steering_sentence(engine, options));
  log.write(LogLevel::info, defaults_sentence(options));

  DS4_ASSIGN(auto store, open_disk_store(engine, options, log));
  Service service(engine, options, log, files.trace.get(), std::move(store));
  DS4_TRY(service.listen(options, std::move(files.keys)));
  const std::string name =
      options.host.find(':') == std::string::npos ? options.host : fmt::format("[{}]", options.host);
  log.write(LogLevel::info,
            fmt::format("listening on {}://{}:{}", options.tls_key_path.empty() ? "http" : "https", name,
                        service.port()));
  signals.wait();
  log.write(LogLevel::info,
            "no new requests; what runs may go on for a while (a second signal ends it at once)");
  service.drain(signals, std::chrono::seconds(options.drain_seconds));
  log.write(LogLevel::info, "stopped");
  if (!service.broken().empty()) {
    return fail(ErrorCode::internal, "the engine does not work any more: {}", service.broken());
  }
  return {};
}

}  // namespace ds4::server
