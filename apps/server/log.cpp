#include "log.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include <boost/json.hpp>

namespace ds4::server {
namespace {

constexpr const char* names[] = {"debug", "info", "warning", "error"};

LogLevel level_of(std::string_view name) {
  for (size_t i = 0; i < std::size(names); ++i) {
    if (name == names[i]) return static_cast<LogLevel>(i);
  }
  return LogLevel::info;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Log::Sink {
  spdlog::logger logger{"ds4-server", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
};

Log::Log(std::string_view level, bool json)
    : sink_(std::make_unique<Sink>()), least_(level_of(level)), json_(json) {
  sink_->logger.set_level(spdlog::level::trace);
  sink_->logger.set_pattern(json ? "%v" : "%m%d %H:%M:%S ds4-server: %v");
  sink_->logger.flush_on(spdlog::level::trace);
}

Log::~Log() = default;

void Log::write(LogLevel level, std::string_view sentence, const Fields& fields) {
  if (!enabled(level)) return;
  std::string line;
  if (json_) {
    line = fmt::format("{{\"time\":{:.3f},\"level\":\"{}\",\"message\":{}", seconds_since_1970(),
                       names[static_cast<size_t>(level)], quoted(sentence));
    for (const auto& [name, value] : fields) line += fmt::format(",{}:{}", quoted(name), value);
    line += '}';
  } else {
    if (level >= LogLevel::warning) line = fmt::format("{}: ", names[static_cast<size_t>(level)]);
    line += sentence;
    for (const auto& [name, value] : fields) line += fmt::format(" {}={}", name, value);
  }
  sink_->logger.info(spdlog::string_view_t(line));
}

std::string quoted(std::string_view text) {
  return boost::json::serialize(boost::json::string(text));
}

}  // namespace ds4::server
