#include "server/disk_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "store/reply_codec.hpp"

namespace ds4::server {
namespace {

// Evaluating fewer tokens than this is not slower than reading a state.
constexpr size_t least_gain_tokens = 128;

constexpr int most_attempts = 4;
constexpr std::chrono::milliseconds stats_age{100};

}  // namespace

std::string_view disk_result_name(DiskResult result) {
  switch (result) {
    case DiskResult::unused:
      return "unused";
    case DiskResult::hit:
      return "hit";
    case DiskResult::miss:
      return "miss";
    case DiskResult::failed:
      return "failed";
  }
  return "";
}

DiskCache::DiskCache(const Engine& engine, std::unique_ptr<store::StateStore> store, Metrics& metrics)
    : engine_(engine),
      store_(std::move(store)),
      writer_(*store_),
      hits_(metrics.counter("ds4_disk_cache_hits_total", "Prompts of which a beginning was read from disk.")),
      misses_(
          metrics.counter("ds4_disk_cache_misses_total", "Prompts of which the disk had nothing to add.")),
      failures_(
          metrics.counter("ds4_disk_cache_failures_total", "States on disk that could not be restored.")),
      seconds_(metrics.histogram("ds4_disk_cache_restore_seconds", "From looking to having a session.",
                                 {0.001, 0.01, 0.1, 0.5, 1, 5})),
      thread_([this] { run(); }) {
  add_metrics(metrics);
}

DiskCache::~DiskCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void DiskCache::add_metrics(Metrics& metrics) {
  const auto gauge = [&](const char* name, const char* help, uint64_t store::StoreStats::* value) {
    metrics.gauge(name, help, [this, value] { return static_cast<double>(recent_stats().*value); });
  };
  gauge("ds4_disk_cache_entries", "States on disk.", &store::StoreStats::entries);
  gauge("ds4_disk_cache_bytes", "Files of the disk cache.", &store::StoreStats::bytes);
  gauge("ds4_disk_cache_written_bytes", "Written since the start.", &store::StoreStats::bytes_written);
  gauge("ds4_disk_cache_read_bytes", "Read since the start.", &store::StoreStats::bytes_read);
  gauge("ds4_disk_cache_evictions", "States given up for others since the start.",
        &store::StoreStats::evictions);
  gauge("ds4_disk_cache_damaged", "Damaged states dropped since the start.", &store::StoreStats::damaged);
  metrics.gauge("ds4_disk_cache_unwritten", "States given up before they were written, since the start.",
                [this] { return static_cast<double>(writer_.counts().dropped); });
}

// One look at the store is enough for all metrics of a scrape.
store::StoreStats DiskCache::recent_stats() {
  const std::lock_guard lock(stats_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - stats_at_ > stats_age) {
    stats_ = store_->stats();
    stats_at_ = now;
  }
  return stats_;
}

std::shared_ptr<DiskLook> DiskCache::look(const Prompt& prompt, const std::vector<Token>& tokens,
                                          size_t longer_than, uint64_t context) {
  if (tokens.size() < policy().min_tokens || tokens.size() < longer_than + least_gain_tokens) return nullptr;
  auto look = std::make_shared<DiskLook>();
  look->prompt_ = prompt;
  look->tokens = tokens;
  look->longer_than_ = longer_than;
  look->context_ = context;
  {
    const std::lock_guard lock(mutex_);
    looks_.push_back(look);
  }
  wake_.notify_all();
  return look;
}

void DiskCache::call_when_looked(std::function<void()> call) {
  const std::lock_guard lock(call_mutex_);
  when_looked_ = std::move(call);
}

void DiskCache::run() {
  while (true) {
    std::shared_ptr<DiskLook> look;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !looks_.empty(); });
      if (stopping_) return;
      look = std::move(looks_.front());
      looks_.pop_front();
    }
    const auto begin = std::chrono::steady_clock::now();
    // Nobody waits any more.
    if (look.use_count() > 1) {
      try {
        restore(look);
      } catch (const std::bad_alloc&) {
        look->session.reset();
        look->result = DiskResult::failed;
        look->no_memory = true;
      }
    }
    look->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (look->result == DiskResult::hit) seconds_.observe(look->seconds);
    (look->result == DiskResult::hit ? hits_ : look->result == DiskResult::miss ? misses_ : failures_).add();
    look->done_.store(true, std::memory_order_release);
    look.reset();
    const std::lock_guard lock(call_mutex_);
    if (when_looked_) when_looked_();
  }
}

void DiskCache::restore(const std::shared_ptr<DiskLook>& shared) {
  DiskLook& look = *shared;
  const std::vector<store::TextBorder> borders =
      store::prompt_borders(look.prompt_.text, look.prompt_.special);
  const auto abandoned = [&] { return shared.use_count() == 1; };
  // A damaged state is dropped when it is read; a shorter one may be sound.
  bool by_text = true;
  for (int attempt = 0; attempt < most_attempts && !look.session && !abandoned(); ++attempt) {
    store::StoreQuery query{.tokens = look.tokens,
                            .longer_than = look.longer_than_ + least_gain_tokens,
                            .most_tokens = look.context_ - 1};
    if (by_text) query.borders = borders;
    const auto match = store_->find(query);
    if (!match) return;
    std::vector<Token> continued = look.tokens;
    if (match->text_bytes > 0) {
      continued = match->tokens;
      const auto rest = look.prompt_.rendered.suffix(match->text_bytes).encode(engine_.tokenizer());
      continued.insert(continued.end(), rest.begin(), rest.end());
      // Sampled tokens may be more than those of the same text, and too many.
      const auto text = std::string_view(look.prompt_.text).substr(0, match->text_bytes);
      by_text = store::spells(match->tokens, engine_.tokenizer(), text, look.prompt_.special) &&
                continued.size() < look.context_;
      if (!by_text) continue;
    }
    auto session = read(*match, look.context_, abandoned);
    look.result = session ? DiskResult::hit : DiskResult::failed;
    look.no_memory = !session && session.error().code == ErrorCode::out_of_memory;
    if (look.no_memory) return;
    if (!session) continue;
    look.session = std::move(*session);
    look.tokens = std::move(continued);
    look.by_text = match->text_bytes > 0;
  }
}

Result<Session> DiskCache::read(const store::StoreMatch& match, uint64_t context,
                                std::function<bool()> cancelled) {
  const auto tokens = std::span(match.tokens).first(match.position);
  DS4_ASSIGN(StateImport state, engine_.import_state(tokens, context));
  store::SessionSink sink(std::move(state), std::move(cancelled));
  DS4_TRY(store_->read(match, sink));
  return std::move(*sink.take());
}

void DiskCache::save(const ResidentSession& resident, const Save& how) {
  // What computed NaN would be built upon by everybody who begins alike.
  if (resident.session().position() < policy().min_tokens || !resident.session().argmax()) return;
  auto snapshot = resident.session().snapshot();
  if (!snapshot) return;  // no memory for it: another time
  store::WriteInfo info;
  info.reason = how.reason;
  info.anchor = how.anchor;
  info.forced = how.forced;
  writer_.post(store::StateJob{
      how.branch ? std::string() : fmt::to_string(resident.id),
      std::make_shared<const store::SnapshotSource>(std::move(*snapshot), engine_.tokenizer()),
      std::move(info)});
}

std::shared_ptr<const SampledReply> DiskCache::get_reply(std::string_view key) {
  const auto bytes = store_->get_reply(key);
  if (!bytes) return nullptr;
  auto reply = store::parse_sampled_reply(*bytes);
  return reply ? std::make_shared<const SampledReply>(std::move(*reply)) : nullptr;
}

void DiskCache::put_reply(const std::vector<std::string>& keys,
                          const std::shared_ptr<const SampledReply>& reply) {
  writer_.post(store::ReplyJob{keys, store::serialize_sampled_reply(*reply)});
}

}  // namespace ds4::server
