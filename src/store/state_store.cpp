#include "store/state_store.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "store/chain.hpp"
#include "store/state_reader.hpp"

namespace ds4::store {

Result<std::unique_ptr<StateStore>> StateStore::open(StateStoreOptions options) {
  const auto fingerprint = Hash128::from_hex(options.fingerprint);
  if (!fingerprint) {
    return fail(ErrorCode::invalid_argument, "a fingerprint has 32 hexadecimal digits, not \"{}\"",
                options.fingerprint);
  }
  if (options.block_tokens == 0 || options.block_tokens > most_block_tokens || options.block_bytes == 0 ||
      options.block_bytes > UINT64_MAX / (2 * blocks_per_segment) || !options.frontier_bytes) {
    return fail(ErrorCode::invalid_argument, "the sizes of a state are missing or out of range");
  }
  if (const char* problem = check(options.policy)) return fail(ErrorCode::invalid_argument, "{}", problem);
  return catch_bad_alloc("the disk cache", [&]() -> Result<std::unique_ptr<StateStore>> {
    DS4_ASSIGN(StoreFolder folder, StoreFolder::open(options.directory.directory));
    std::unique_ptr<StateStore> store(new StateStore(std::move(options), std::move(folder), *fingerprint));
    if (const auto started = store->start(); !started) {
      // A disk that is full or fails may be sound again later: every use looks anew.
      if (started.error().code != ErrorCode::io) return started.error();
      store->log(fmt::format("KV disk cache: {}", started.error().message));
    }
    return store;
  });
}

StateStore::StateStore(StateStoreOptions options, StoreFolder folder, const Hash128& fingerprint)
    : StoreDirectory(options.directory, std::move(folder)),
      settings_(std::move(options)),
      fingerprint_(fingerprint) {}

void StateStore::count_miss(const char* reason) {
  count([&](StoreStats& stats) {
    ++stats.misses;
    ++stats.miss_reasons[reason];
  });
}

std::optional<StoreMatch> StateStore::find(const StoreQuery& query) {
  const char* miss = "";
  const auto work = [&](StoreIndex& index) -> Result<Found> {
    Chain chain(fingerprint_, settings_.block_tokens);
    chain.append(query.tokens);
    DS4_ASSIGN(Found by_tokens, find_by_tokens(index, chain, query));
    const uint64_t position = by_tokens.row.position;
    DS4_ASSIGN(Found by_text, find_by_text(index, query, std::max(position, query.longer_than)));
    if (by_text.row.position > 0) return by_text;
    if (position > query.longer_than) return by_tokens;
    DS4_ASSIGN(const auto totals, index.totals());
    miss = position > 0 ? "nothing-longer" : totals.frontiers == 0 ? "empty" : "other-start";
    return Found{};
  };
  const auto found =
      catch_bad_alloc("a search of the disk cache", [&] { return with_index(Held::nothing, work); });
  if (!found) {
    log_rarely("find", fmt::format("KV disk cache: {}", found.error().message));
    count_miss("failed");
    return std::nullopt;
  }
  if (found->row.position == 0) {
    count_miss(miss);
    return std::nullopt;
  }
  return StoreMatch{found->row.key, found->row.position, found->tokens, found->text_bytes};
}

Result<StateStore::Found> StateStore::find_by_tokens(StoreIndex& index, const Chain& chain,
                                                     const StoreQuery& query) {
  const uint64_t most = std::min<uint64_t>(query.most_tokens, query.tokens.size());
  DS4_ASSIGN(auto row, nearest_frontier(index, chain, settings_.block_tokens, query.tokens, most));
  if (!row || row->position < settings_.policy.min_tokens) return Found{};
  const auto tokens = query.tokens.first(row->position);
  return Found{std::move(*row), {tokens.begin(), tokens.end()}, 0};
}

Result<StateStore::Found> StateStore::find_by_text(StoreIndex& index, const StoreQuery& query,
                                                   uint64_t longer_than) {
  for (auto border = query.borders.rbegin(); border != query.borders.rend(); ++border) {
    DS4_ASSIGN(const auto rows, index.find_border(border->hash));
    for (const BorderRow& stored : rows) {
      if (stored.tokens <= longer_than || stored.tokens > query.most_tokens) continue;
      DS4_ASSIGN(const auto owner, index.frontier(stored.frontier));
      if (!owner || owner->fingerprint != fingerprint_ || owner->block_tokens != settings_.block_tokens ||
          owner->position < stored.tokens) {
        continue;
      }
      DS4_ASSIGN(const Lineage lineage, lineage_of(index, *owner));
      const size_t blocks = stored.tokens / settings_.block_tokens;
      const auto tokens = std::span(lineage.tokens).first(stored.tokens);
      if (Chain::key_of(lineage.chain[blocks], tokens.subspan(blocks * settings_.block_tokens),
                        stored.tokens) != stored.prefix) {
        continue;
      }
      Chain chain(fingerprint_, settings_.block_tokens);
      chain.append(tokens);
      DS4_ASSIGN(auto row, nearest_frontier(index, chain, settings_.block_tokens, tokens, stored.tokens));
      if (!row || row->position <= longer_than || row->position < settings_.policy.min_tokens) continue;
      return Found{std::move(*row), {tokens.begin(), tokens.end()}, border->text_bytes};
    }
  }
  return Found{};
}

Result<StoreMatch> StateStore::match(const Hash128& key) {
  const auto work = [&](StoreIndex& index) -> Result<StoreMatch> {
    DS4_ASSIGN(const auto row, index.frontier(key));
    if (!row || row->fingerprint != fingerprint_ || row->block_tokens != settings_.block_tokens)
      return fail(ErrorCode::not_found, "there is no state {} of this model", key.hex());
    DS4_ASSIGN(Lineage lineage, lineage_of(index, *row));
    return StoreMatch{key, row->position, std::move(lineage.tokens), 0};
  };
  return catch_bad_alloc("a state of the disk cache", [&] { return with_index(Held::nothing, work); });
}

Result<void> StateStore::note_use(const Hash128& key) {
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(const auto row, index.frontier(key));
    if (!row) return {};
    return index.set_use(row->id, decayed_hits(row->hits, row->used, now()) + 1, now());
  };
  return with_index(Held::nothing, work);
}

Result<void> StateStore::read(const StoreMatch& match, StateSink& sink) {
  const Use use(*this, match.key);
  // Before it is read, so that other processes spare it too.
  if (const auto noted = note_use(match.key); !noted) {
    log_rarely("use", fmt::format("KV disk cache: {}", noted.error().message));
  }
  uint64_t bytes = 0;
  const auto done = catch_bad_alloc("a state from disk", [&] { return read_checked(match, sink, bytes); });
  count([&](StoreStats& stats) {
    stats.bytes_read += bytes;
    if (done) ++stats.hits;
  });
  if (!done) count_miss(done.error().code == ErrorCode::not_found ? "gone" : "failed");
  if (!done && done.error().code == ErrorCode::io) {
    log_rarely("read", fmt::format("KV disk cache: {}", done.error().message));
  }
  return done;
}

bool StateStore::is_indexed(const Hash128& key) {
  const auto row = with_index(Held::nothing, [&](StoreIndex& index) { return index.frontier(key); });
  return row && row->has_value();
}

Result<void> StateStore::read_checked(const StoreMatch& match, StateSink& sink, uint64_t& bytes) {
  const auto failed = [&](const Error& error) {
    return fail(is_damage(error) ? ErrorCode::not_found : error.code, "the state {} cannot be read: {}",
                match.key.hex(), error.message);
  };
  std::optional<FrontierRow> row;
  Lineage lineage;
  const auto work = [&](StoreIndex& index) -> Result<void> {
    DS4_ASSIGN(row, index.frontier(match.key));
    if (!row) return {};
    DS4_ASSIGN(lineage, lineage_of(index, *row));
    return {};
  };
  DS4_TRY(with_index(Held::nothing, work));
  if (!row) return fail(ErrorCode::not_found, "the state {} is gone", match.key.hex());
  if (lineage.tokens.size() > match.tokens.size() ||
      !std::equal(lineage.tokens.begin(), lineage.tokens.end(), match.tokens.begin())) {
    return fail(ErrorCode::not_found, "the state {} is of other tokens", match.key.hex());
  }

  // The smaller part first: most of what can be wrong is seen before the sink has work to undo.
  std::vector<std::byte> frontier;
  const auto read_frontier = [&]() -> Result<void> {
    DS4_ASSIGN(const InputFile file, InputFile::open(folder_.path_of(FileKind::frontier, match.key)));
    DS4_ASSIGN(const auto header_bytes, file.read_header(FileKind::frontier));
    DS4_ASSIGN(const FrontierHeader header, parse_frontier(header_bytes, file.bytes));
    if (header.name() != match.key || header.fingerprint != fingerprint_ ||
        header.position != row->position || header.base != row->base || header.tail != row->tail) {
      return fail(ErrorCode::format, "it is not the state that it should be");
    }
    if (header.payload_bytes != settings_.frontier_bytes(header.position)) {
      return fail(ErrorCode::format, "its size is not that of a state of this model");
    }
    frontier.resize(header.payload_bytes);
    DS4_TRY(file.read(header_bytes.size(), frontier));
    if (hash_of(frontier) != header.payload_hash) return fail(ErrorCode::format, "a checksum is wrong");
    bytes += file.bytes;
    return {};
  };
  // What another process has evicted meanwhile is no damage.
  const auto is_of_no_use = [&](const Error& error) {
    return is_damage(error) || (error.code == ErrorCode::not_found && is_indexed(match.key));
  };
  if (const auto done = read_frontier(); !done) {
    if (is_of_no_use(done.error())) drop(match.key, done.error().message);
    return failed(done.error());
  }

  ReadPlan plan{&folder_, fingerprint_, static_cast<uint32_t>(settings_.block_tokens), settings_.block_bytes};
  std::span<const Token> tokens = lineage.tokens;
  for (const Lineage::Piece& piece : lineage.pieces) {
    const size_t count = size_t{piece.blocks} * settings_.block_tokens;
    plan.segments.push_back({piece.segment.name, piece.segment.parent_hash, piece.segment.first_block,
                             piece.blocks, tokens.first(count)});
    tokens = tokens.subspan(count);
  }
  const auto failure = read_blocks(plan, [&](std::span<const std::byte> block) {
    bytes += block.size();
    return sink.add_block(block);
  });
  if (failure && failure->from_sink) return refused(match.key, failure->error);
  if (failure) {
    if (is_of_no_use(failure->error)) {
      drop_segment(plan.segments[failure->segment].name, failure->error.message);
    }
    return failed(failure->error);
  }
  if (const auto added = sink.add_frontier(frontier); !added) return refused(match.key, added.error());
  return {};
}

Error StateStore::refused(const Hash128& key, const Error& error) {
  // It would be refused for ever, and shorter states never be asked for.
  if (error.code == ErrorCode::format || error.code == ErrorCode::invalid_argument ||
      error.code == ErrorCode::not_finite) {
    drop(key, error.message);
  }
  return error;
}

}  // namespace ds4::store
