#include "disk_probe.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "common/console.hpp"
#include "store/engine_state.hpp"

namespace ds4::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double rate(uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

Error named(const std::string& folder, const Error& error) {
  return fail(error.code, "the disk cache in {} failed: {}", folder, error.message);
}

store::StoreDirectoryOptions directory_options(const std::string& folder) {
  store::StoreDirectoryOptions options;
  options.directory = folder;
  options.budget_bytes = UINT64_MAX;  // nothing that others keep there has to go
  options.log = [](std::string_view line) { cli::warn(line); };
  return options;
}

/// Part of the names of states, so that each run writes its own.
std::string run_name() {
  return fmt::format("ds4-bench {} {}", getpid(),
                     std::chrono::system_clock::now().time_since_epoch().count());
}

}  // namespace

double DiskTimes::write_bytes_per_second() const {
  return rate(written_bytes, write_seconds);
}
double DiskTimes::read_bytes_per_second() const {
  return rate(read_bytes, read_seconds);
}

Result<bool> same_state(const Session& a, const Session& b) {
  if (!std::ranges::equal(a.tokens(), b.tokens())) return false;
  DS4_ASSIGN(const auto logits_a, a.logits());
  DS4_ASSIGN(const auto logits_b, b.logits());
  return logits_a.size() == logits_b.size() &&
         (logits_a.empty() || std::memcmp(logits_a.data(), logits_b.data(), logits_a.size_bytes()) == 0);
}

Result<void> DiskProbe::check_folder(const std::string& folder) {
  const auto opened = store::StoreDirectory::open(directory_options(folder));
  if (!opened) return named(folder, opened.error());
  return {};
}

Result<DiskProbe> DiskProbe::open(const std::string& folder, const Engine& engine) {
  DS4_ASSIGN(auto fingerprint, store::state_fingerprint(engine, run_name()));
  auto options = store::store_options(engine.state_layout(), std::move(fingerprint));
  options.directory = directory_options(folder);
  options.policy.min_tokens = 1;
  auto opened = store::StateStore::open(std::move(options));
  if (!opened) return named(folder, opened.error());
  return DiskProbe(folder, engine, std::move(*opened));
}

DiskProbe::DiskProbe(std::string folder, const Engine& engine, std::unique_ptr<store::StateStore> store)
    : folder_(std::move(folder)), engine_(&engine), store_(std::move(store)) {}

DiskProbe::DiskProbe(DiskProbe&&) noexcept = default;

DiskProbe::~DiskProbe() {
  if (!store_) return;
  store::PurgeFilter own;
  own.fingerprint = store_->fingerprint();
  if (const auto purged = store_->purge(own); !purged) {
    cli::warn(fmt::format("the states in {} were not removed: {}", folder_, purged.error().message));
  }
}

Result<void> DiskProbe::write(const Session& session, DiskTimes& times) {
  const auto begin = Clock::now();
  DS4_ASSIGN(Snapshot snapshot, session.snapshot());
  const store::SnapshotSource source(std::move(snapshot), engine_->tokenizer());
  store::WriteInfo info;
  info.forced = true;
  DS4_ASSIGN(const store::WriteReport report, store_->write(source, info));
  times.write_seconds = seconds_since(begin);
  times.written_bytes = report.bytes_written;
  return {};
}

Result<Session> DiskProbe::read(const Session& session, DiskTimes& times) {
  const uint64_t bytes_before = store_->stats().bytes_read;
  const auto begin = Clock::now();
  store::StoreQuery query;
  query.tokens = session.tokens();
  query.longer_than = session.position() - 1;
  const auto match = store_->find(query);
  if (!match) return fail(ErrorCode::not_found, "the state of {} tokens is gone", session.position());
  DS4_ASSIGN(StateImport state, engine_->import_state(match->tokens, session.context()));
  store::SessionSink sink(std::move(state));
  DS4_TRY(store_->read(*match, sink));
  std::optional<Session> restored = sink.take();
  times.read_seconds = seconds_since(begin);
  times.read_bytes = store_->stats().bytes_read - bytes_before;
  if (!restored) return fail(ErrorCode::internal, "the state of {} tokens has no end", session.position());
  return std::move(*restored);
}

Result<DiskTimes> DiskProbe::measure(const Session& session) {
  DiskTimes times;
  if (const auto written = write(session, times); !written) return named(folder_, written.error());
  const auto restored = read(session, times);
  if (!restored) return named(folder_, restored.error());
  DS4_ASSIGN(const bool same, same_state(session, *restored));
  if (!same) {
    return fail(ErrorCode::internal, "the state of {} tokens read from {} is not the one that was written",
                session.position(), folder_);
  }
  return times;
}

}  // namespace ds4::bench
