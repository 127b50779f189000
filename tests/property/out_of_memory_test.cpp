// Whichever allocation fails: the call says out_of_memory, and the session can be used as if nothing had
// been.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "support/session_checks.hpp"

namespace {

/// Allocations of the armed thread that succeed before one fails; the later ones fail too if `for_good`.
thread_local bool armed = false;
thread_local bool for_good = false;
thread_local bool failed = false;
thread_local size_t left = 0;

bool refuse() {
  if (!armed) return false;
  if (failed) return for_good;
  if (left > 0) {
    --left;
    return false;
  }
  return failed = true;
}

void* allocate(size_t size, size_t alignment) {
  if (refuse()) throw std::bad_alloc();
  void* memory = nullptr;
  if (posix_memalign(&memory, std::max(alignment, sizeof(void*)), std::max<size_t>(size, 1)) != 0) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

// NOLINTBEGIN: these replace the ones of the C++ library
void* operator new(size_t size) {
  return allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
// NOLINTEND

namespace ds4 {
namespace {

using testing::logits_of;
using testing::must;
using testing::random_tokens;

EngineOptions options() {
  EngineOptions result;
  result.model_path = DS4_SOURCE_DIR "/models/nano/nano.gguf";
  result.mtp_path = DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf";
  result.backend = BackendChoice::cpu;
  result.threads = 1;
  result.prefill_chunk = 16;
  return result;
}

class OutOfMemoryTest : public ::testing::Test {
 protected:
  /// Runs `call` with its first allocation failing, its second, ... until none is left to fail; `prepare`
  /// comes before and `check` after every failure.
  template <class Call>
  static void fail_each(const std::function<void()>& prepare, const Call& call,
                        const std::function<void()>& check) {
    size_t failures = 0;
    for (const bool lasting : {false, true}) {
      // Every one of the first few, fewer of the many that follow.
      for (size_t nth = 0;; nth += 1 + nth / 2) {
        prepare();
        left = nth;
        failed = false;
        for_good = lasting;
        armed = true;
        const auto result = call();
        armed = false;
        if (!failed) {
          EXPECT_TRUE(result);
          break;
        }
        ++failures;
        if (!result) {
          EXPECT_EQ(result.error().code, ErrorCode::out_of_memory) << result.error().message;
        }
        check();
        if (::testing::Test::HasFailure()) FAIL() << "allocation " << nth << ", lasting: " << lasting;
      }
    }
    EXPECT_GT(failures, 0u);
  }

  // After a failure a session holds a prefix of what it should hold, and goes on from there.
  void expect_usable(Session& used, std::span<const Token> wanted) const {
    ASSERT_LE(used.position(), wanted.size());
    ASSERT_TRUE(std::equal(used.tokens().begin(), used.tokens().end(), wanted.begin()));
    must(used.sync(wanted));
    ASSERT_EQ(logits_of(used), expected(wanted));
  }
  std::vector<float> expected(std::span<const Token> wanted) const {
    Session fresh = must(engine.create_session(500));
    must(fresh.sync(wanted));
    return logits_of(fresh);
  }

  const EngineOptions engine_options = options();
  const Engine engine = must(Engine::open(engine_options));
  Session session = must(engine.create_session(500));
  const std::vector<Token> tokens = random_tokens(40, 1);
};

const auto nothing = [] {};

TEST_F(OutOfMemoryTest, OpeningAnEngineAndMakingSessions) {
  fail_each(nothing, [&] { return Engine::plan_memory(engine_options); }, nothing);
  fail_each(nothing, [&] { return Engine::open(engine_options); }, nothing);
  fail_each(nothing, [&] { return engine.create_session(500); }, nothing);
}

TEST_F(OutOfMemoryTest, Prompts) {
  fail_each([&] { session.reset(); }, [&] { return session.sync(std::span(tokens).first(20)); },
            [&] { expect_usable(session, std::span(tokens).first(20)); });
  fail_each([&] { must(session.sync(std::span(tokens).first(20))); },
            [&] { return session.sync(std::span(tokens).first(30)); },
            [&] { expect_usable(session, std::span(tokens).first(30)); });
  fail_each([&] { must(session.sync(tokens)); }, [&] { return session.rewind(21); },
            [&] { expect_usable(session, tokens); });
  fail_each([&] { must(session.sync(tokens)); },
            [&] { return session.capture(std::span(tokens).first(7), {}, 2); },
            [&] { expect_usable(session, tokens); });
  fail_each([&] { must(session.sync(std::span(tokens).first(9))); },
            [&] { return session.score(std::span(tokens).subspan(9)); },
            [&] { expect_usable(session, tokens); });
}

TEST_F(OutOfMemoryTest, Steps) {
  // Each fourth token completes a row; the 128th leaves an anchor.
  const auto long_prompt = random_tokens(127, 2);
  std::vector<float> after;
  {
    Session fresh = must(engine.create_session(500));
    must(fresh.sync(long_prompt));
    must(fresh.eval(5));
    after = logits_of(fresh);
  }
  const auto go_on = [&](Session& one) {
    ASSERT_TRUE(one.position() == 0 || one.position() == 127 || one.position() == 128) << one.position();
    must(one.sync(long_prompt));
    must(one.eval(5));
    ASSERT_EQ(logits_of(one), after);
  };
  const auto prepare = [&](Session& one) { must(one.sync(long_prompt)); };
  fail_each([&] { prepare(session); }, [&] { return session.eval(5); }, [&] { go_on(session); });
  Session other = must(engine.create_session(500));
  fail_each(
      [&] {
        prepare(session);
        prepare(other);
      },
      [&] {
        const BatchRow rows[] = {{&session, 5}, {&other, 5}};
        return engine.eval_batch(rows);
      },
      [&] {
        go_on(session);
        go_on(other);
      });

  SpeculationOptions speculation;
  speculation.depth = 3;
  speculation.min_margin = 0;
  speculation.adaptive = false;
  session.set_speculation(speculation);
  Rng rng(1);
  fail_each([&] { prepare(session); }, [&] { return session.generate({.temperature = 0}, rng, 4); },
            [&] {
              must(session.sync(long_prompt));
              must(session.eval(5));
              ASSERT_EQ(logits_of(session), after);
            });
}

TEST_F(OutOfMemoryTest, ChoicesAndLogits) {
  const std::vector<uint64_t> some(4096 / 64, 0x00f000f000f000f0);
  Rng rng(3);
  std::optional<Session> fresh;  // a session reuses the memory of what it fetched before
  const auto prepare = [&] {
    fresh.emplace(must(engine.create_session(500)));
    must(fresh->sync(std::span(tokens).first(3)));
  };
  const auto check = [&] { expect_usable(*fresh, std::span(tokens).first(3)); };
  for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_p = 0.9f, .min_p = 0}}) {
    fail_each(prepare, [&] { return fresh->sample(params, rng); }, check);
    fail_each(prepare, [&] { return fresh->sample(params, rng, some); }, check);
  }
  fail_each(prepare, [&] { return fresh->logits(); }, check);
}

TEST_F(OutOfMemoryTest, KeptStates) {
  fail_each([&] { must(session.sync(tokens)); }, [&] { return session.fork(20); },
            [&] { expect_usable(session, tokens); });
  fail_each([&] { must(session.sync(tokens)); }, [&] { return session.snapshot(); },
            [&] { expect_usable(session, tokens); });
  fail_each(
      [&] {
        must(session.sync(std::span(tokens).first(39)));
        must(session.eval(tokens[39]));  // leaves no anchor of its own
      },
      [&] { return session.keep_anchor(); }, [&] { expect_usable(session, tokens); });
  const Snapshot snapshot = must(session.snapshot());
  // Of as many tokens: what is left must not be taken for what was to come.
  const auto others = random_tokens(tokens.size(), 3);
  fail_each([&] { must(session.sync(others)); }, [&] { return session.restore(snapshot); },
            [&] {
              const bool restored = session.common_prefix(tokens) == session.position();
              expect_usable(session, restored ? tokens : others);
            });
}

TEST_F(OutOfMemoryTest, StatesAsBytes) {
  const auto prompt = random_tokens(130, 4);
  const StateLayout& layout = engine.state_layout();
  std::vector<std::byte> block(layout.block_bytes()), frontier(layout.frontier_bytes(prompt.size()));
  must(session.sync(prompt));
  const Snapshot snapshot = must(session.snapshot());
  fail_each(nothing, [&] { return session.snapshot(130); }, nothing);
  fail_each(nothing, [&] { return snapshot.export_block(0, block); }, nothing);
  fail_each(nothing, [&] { return snapshot.export_frontier(frontier); }, nothing);
  fail_each(nothing, [&] { return engine.fingerprint(); }, nothing);
  std::optional<StateImport> import;
  const auto import_whole = [&]() -> Result<Session> {
    auto begun = engine.import_state(prompt, 500);
    if (!begun) return begun.error();
    import.emplace(std::move(*begun));
    if (auto done = import->add_block(block); !done) return done.error();
    return import->finish(frontier);
  };
  fail_each([&] { import.reset(); }, import_whole,
            [&] {  // an import that failed is over
              if (import) {
                EXPECT_FALSE(import->finish(frontier));
              }
            });
  Session copy = must(import_whole());
  EXPECT_EQ(logits_of(copy), expected(prompt));
}

}  // namespace
}  // namespace ds4
