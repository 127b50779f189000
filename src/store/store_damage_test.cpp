// Whatever is done to the files, what is read is what was written, or nothing.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <functional>
#include <optional>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;
namespace fs = std::filesystem;

class StoreDamage : public StoreTest {
 protected:
  StoreDamage() { sizes_.frontier_base_bytes = 20; }

  /// Two states of one text and one of another, and a reply.
  void fill_folder() {
    auto store = open();
    for (const auto& tokens : texts_) write(*store, tokens);
    ASSERT_TRUE(store->put_reply(keys_, std::as_bytes(std::span(reply_))));
  }

  /// Everything can be asked for; what comes is right. The number of states that came.
  size_t use_all(StateStore& store) {
    size_t hits = 0;
    for (const auto& tokens : texts_) hits += restore(store, tokens) == tokens.size() ? 1 : 0;
    const auto reply = store.get_reply(keys_[0]);
    if (reply) {
      EXPECT_EQ(reply->size(), reply_.size());
      EXPECT_EQ(std::memcmp(reply->data(), reply_.data(), reply_.size()), 0);
      ++hits;
    }
    return hits;
  }

  /// Afterwards everything can be stored and found as if nothing had been.
  void expect_recovery(StateStore& store, const std::string& what) {
    for (const auto& tokens : texts_) ASSERT_TRUE(store.write(FakeState(tokens), {.forced = true})) << what;
    ASSERT_TRUE(store.put_reply(keys_, std::as_bytes(std::span(reply_)))) << what;
    ASSERT_EQ(use_all(store), texts_.size() + 1) << what;
  }

  /// `damage` is done to a copy of the folder; `open_before`: while a store has it open.
  void check(const std::string& what, bool open_before, const std::function<void()>& damage) {
    fs::remove_all(folder_);
    fs::copy(original_, folder_, fs::copy_options::recursive);
    log_.clear();
    std::unique_ptr<StateStore> store;
    if (open_before) store = open();
    damage();
    if (!open_before) store = open();
    ASSERT_TRUE(store) << what;
    use_all(*store);
    ASSERT_LE(log_.size(), 1u) << what << ": " << log_[0] << "; " << log_[1];
    expect_recovery(*store, what);
  }

  void keep_original() {
    original_ = folder_.string() + "-original";
    fs::remove_all(original_);
    fs::rename(folder_, original_);
  }
  ~StoreDamage() override {
    if (!original_.empty()) fs::remove_all(original_);
  }

  const std::vector<std::vector<Token>> texts_{run(10), run(19), join(run(5), run(4, 600))};
  const std::vector<std::string_view> keys_{"call_1"};
  const std::string reply_ = "a reply";
  fs::path original_;
};

// Files are checked when they are read, so the store is open already; and once more when it is opened later.
TEST_F(StoreDamage, EveryByteOfEveryFile) {
  fill_folder();
  keep_original();
  size_t checked = 0;
  for (const char* end : {".seg", ".fr", ".rp"}) {
    for (const fs::path& file : files_with(original_.string(), end)) {
      const fs::path inside = fs::relative(file, original_);
      const std::string bytes = read_file(file);
      for (size_t at = 0; at < bytes.size(); ++at, ++checked) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
        check(inside.string() + " byte " + std::to_string(at), at % 4 != 0,
              [&] { write_file(folder_ / inside, changed); });
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(checked, 900u);
}

TEST_F(StoreDamage, FilesCutAnywhere) {
  fill_folder();
  keep_original();
  for (const char* end : {".seg", ".fr", ".rp"}) {
    const auto files = files_with(original_.string(), end);
    const fs::path inside = fs::relative(files.back(), original_);
    const std::string bytes = read_file(files.back());
    for (size_t length = 0; length < bytes.size(); length += 7) {
      check(inside.string() + " cut", length % 2 == 0,
            [&] { write_file(folder_ / inside, bytes.substr(0, length)); });
      if (HasFatalFailure()) return;
    }
    check("longer", true, [&] { write_file(folder_ / inside, bytes + "x"); });
    check("removed", true, [&] { fs::remove(folder_ / inside); });
    check("removed before", false, [&] { fs::remove(folder_ / inside); });
  }
}

TEST_F(StoreDamage, EveryByteOfTheIndex) {
  fill_folder();
  // One file, without a journal beside it.
  fs::remove(folder_ / "index.sqlite-wal");
  fs::remove(folder_ / "index.sqlite-shm");
  fs::remove(folder_ / "index.sqlite");
  open().reset();
  {
    auto database = Database::open((folder_ / "index.sqlite").string());
    ASSERT_TRUE(database);
    ASSERT_TRUE(database->execute("PRAGMA wal_checkpoint(TRUNCATE)"));
  }
  keep_original();
  const std::string bytes = read_file(original_ / "index.sqlite");
  ASSERT_GT(bytes.size(), 20000u);
  size_t checked = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    // All of the file's header, and of the rest what is not empty.
    if (at >= 200 && (bytes[at] == 0 || at % 7 != 0)) continue;
    ++checked;
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    check("index byte " + std::to_string(at), false, [&] { write_file(folder_ / "index.sqlite", changed); });
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(checked, 500u);
}

TEST_F(StoreDamage, TheIndexIsMadeAgain) {
  fill_folder();
  keep_original();
  const std::string bytes = read_file(original_ / "index.sqlite");
  const auto whole = [&](const std::string& what, bool open_before, const std::function<void()>& damage) {
    check(what, open_before, [&] {
      damage();
      if (open_before) return;
      auto store = open();
      EXPECT_EQ(use_all(*store), texts_.size() + 1) << what;
    });
  };
  const auto without_journal = [&] {
    fs::remove(folder_ / "index.sqlite-wal");
    fs::remove(folder_ / "index.sqlite-shm");
  };
  std::string random(30000, 0);
  std::mt19937 generator(5);
  for (char& c : random) c = static_cast<char>(generator());
  whole("gone", false, [&] { fs::remove(folder_ / "index.sqlite"); });
  whole("gone with its journal", false, [&] { fs::remove(folder_ / "index.sqlite"), without_journal(); });
  whole("empty", false, [&] { write_file(folder_ / "index.sqlite", ""), without_journal(); });
  whole("random", false, [&] { write_file(folder_ / "index.sqlite", random), without_journal(); });
  whole("zeros", false,
        [&] { write_file(folder_ / "index.sqlite", std::string(9000, 0)), without_journal(); });
  whole("random journal", false, [&] { write_file(folder_ / "index.sqlite-wal", random); });
  whole("a text", false, [&] { write_file(folder_ / "index.sqlite", "hello"), without_journal(); });
  for (size_t length = 1; length < bytes.size(); length += 997) {
    whole("cut", false,
          [&] { write_file(folder_ / "index.sqlite", bytes.substr(0, length)), without_journal(); });
  }
  whole("of another version", false, [&] {
    auto database = Database::open((folder_ / "index.sqlite").string());
    ASSERT_TRUE(database->execute("PRAGMA user_version=77"));
  });
  whole("of another program", false, [&] {
    fs::remove(folder_ / "index.sqlite"), without_journal();
    auto database = Database::open((folder_ / "index.sqlite").string());
    ASSERT_TRUE(
        database->execute("CREATE TABLE segments(id INTEGER PRIMARY KEY); INSERT INTO segments VALUES(1)"));
  });
  whole("without a table", false, [&] {
    auto database = Database::open((folder_ / "index.sqlite").string());
    ASSERT_TRUE(database->execute("DROP TABLE frontiers"));
  });
  whole("gone while open", true, [&] { fs::remove(folder_ / "index.sqlite"); });
  whole("replaced while open", true, [&] {
    write_file(folder_ / "new", random);
    fs::rename(folder_ / "new", folder_ / "index.sqlite");
  });
}

// Rows that say anything at all: SQL runs, the sense is gone.
TEST_F(StoreDamage, RowsThatMakeNoSense) {
  fill_folder();
  keep_original();
  const std::vector<const char*> statements{
      "UPDATE frontiers SET position=4611686018427387904",
      "UPDATE frontiers SET position=-1",
      "UPDATE frontiers SET position=position+4",
      "UPDATE frontiers SET file_bytes=4611686018427387904",
      "UPDATE frontiers SET file_bytes=-1",
      "UPDATE frontiers SET key=x'00' WHERE id=1",
      "UPDATE frontiers SET base=zeroblob(16)",
      "UPDATE frontiers SET segment=segment+1",
      "UPDATE frontiers SET segment=99, parent=99",
      "UPDATE frontiers SET parent=id",
      "UPDATE frontiers SET parent=3-parent",
      "UPDATE frontiers SET tail=zeroblob(500000)",
      "UPDATE frontiers SET tail='text'",
      "UPDATE frontiers SET block_tokens=0",
      "UPDATE frontiers SET reason=1000, hits=-5",
      "UPDATE frontiers SET hits='nan', used=9223372036854775807",
      "UPDATE frontiers SET used=-9223372036854775808",
      "UPDATE segments SET parent=id",
      "UPDATE segments SET parent=99 WHERE parent<>0",
      "UPDATE segments SET first_block=first_block+8",
      "UPDATE segments SET first_block=-1",
      "UPDATE segments SET blocks=4611686018427387904",
      "UPDATE segments SET blocks=0",
      "UPDATE segments SET tokens=zeroblob(900000)",
      "UPDATE segments SET tokens=x''",
      "UPDATE segments SET file_bytes=4611686018427387904",
      "UPDATE segments SET name=randomblob(16)",
      "UPDATE segments SET fingerprint=randomblob(16)",
      "UPDATE segments SET parent_hash=randomblob(16)",
      "UPDATE blocks SET slot=7",
      "UPDATE blocks SET slot=-1",
      "UPDATE blocks SET segment=segment+1",
      "UPDATE blocks SET segment=4611686018427387904",
      "DELETE FROM blocks",
      "DELETE FROM segments",
      "DELETE FROM frontiers",
      "DELETE FROM segments WHERE id=1",
      "DELETE FROM replies",
      "UPDATE replies SET file_bytes=-1",
      "UPDATE replies SET name=randomblob(16)",
      "UPDATE reply_keys SET reply=99",
      "INSERT INTO borders VALUES(zeroblob(16), zeroblob(16), -5, 99)",
  };
  for (const bool open_before : {false, true}) {
    for (const char* statement : statements) {
      check(statement, open_before, [&] {
        auto database = Database::open((folder_ / "index.sqlite").string());
        ASSERT_TRUE(database->execute(statement)) << statement;
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(StoreDamage, FilesOfOtherNamesAndModels) {
  fill_folder();
  fingerprint_ = fingerprint_b;
  {
    auto other = open();
    for (const auto& tokens : texts_) ASSERT_TRUE(other->write(FakeState(tokens, 1), {}));
  }
  fingerprint_ = fingerprint_a;
  keep_original();
  for (const char* end : {".seg", ".fr"}) {
    const auto files = files_with(original_.string(), end);
    ASSERT_GE(files.size(), 4u);
    for (size_t i = 0; i < files.size(); ++i) {
      for (size_t j = i + 1; j < files.size(); ++j) {
        const fs::path a = fs::relative(files[i], original_), b = fs::relative(files[j], original_);
        // One change, so one line at most.
        check(a.string() + " in place of " + b.string(), (i + j) % 2 == 0,
              [&] { fs::copy_file(original_ / a, folder_ / b, fs::copy_options::overwrite_existing); });
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Lengths in headers are as large as can be, with checksums that fit them.
TEST_F(StoreDamage, LengthsThatNoFileHas) {
  fill_folder();
  keep_original();
  const auto with_checksum = [](std::string bytes, size_t header_bytes) {
    const auto content = std::as_bytes(std::span(bytes)).first(header_bytes - 16);
    const Hash128 hash = hash_of(content);
    std::memcpy(bytes.data() + header_bytes - 16, hash.bytes.data(), 16);
    return bytes;
  };
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  for (const char* end : {".seg", ".fr", ".rp"}) {
    const fs::path file = files_with(original_.string(), end).front();
    const fs::path inside = fs::relative(file, original_);
    const std::string bytes = read_file(file);
    uint32_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data() + 12, 4);
    for (size_t at = 12; at + 8 <= 96 && at + 8 <= header_bytes - 16; at += 4) {
      for (const uint64_t value : {uint64_t{1} << 62, UINT64_MAX, uint64_t{0x7fffffff}, uint64_t{0}}) {
        std::string changed = bytes;
        std::memcpy(changed.data() + at, &value, 8);
        check(inside.string() + " length at " + std::to_string(at), at % 8 == 0,
              [&] { write_file(folder_ / inside, with_checksum(changed, header_bytes)); });
        if (HasFatalFailure()) return;
      }
    }
  }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
#ifndef DS4_SANITIZED  // they keep what is freed
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 65536);
#endif
}

/// No file can be opened while it lives.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;
  ~NoMoreFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(StoreDamage, WhatTheSystemRefusesIsNotDamaged) {
#ifdef DS4_SANITIZED
  GTEST_SKIP() << "the sanitizer's check of dynamic types opens a pipe, and here none can be opened";
#endif
  fill_folder();
  auto store = open();
  const std::vector<Token> text = run(400, 5000);
  const WriteReport written = write(*store, text);
  ASSERT_TRUE(store->set_pinned(written.key, true));
  const auto files = files_with(folder_.string(), "").size();
  const auto match = store->find({.tokens = text});
  ASSERT_TRUE(match);
  {
    const NoMoreFiles now;
    FakeState sink(text);
    EXPECT_EQ(store->read(*match, sink).error().code, ErrorCode::io);
    EXPECT_EQ(store->get_reply(keys_[0]), std::nullopt);
    EXPECT_EQ(store->folder().scan().error().code, ErrorCode::io);
    const auto report = store->verify(true);
    ASSERT_TRUE(report);
    EXPECT_FALSE(report->damaged.empty());
    for (const DamagedFile& file : report->damaged) EXPECT_TRUE(file.unreadable);
  }
  EXPECT_EQ(store->stats().damaged, 0u);
  EXPECT_EQ(files_with(folder_.string(), "").size(), files);
  EXPECT_EQ(use_all(*store), texts_.size() + 1);
  EXPECT_TRUE(store->verify(true)->damaged.empty());
}

// From some segment on, when the rest has been read.
TEST_F(StoreDamage, WhatTheSystemRefusesLaterIsNotDamaged) {
#ifdef DS4_SANITIZED
  GTEST_SKIP() << "the sanitizer's check of dynamic types opens a pipe, and here none can be opened";
#endif
  fill_folder();
  auto store = open();
  const std::vector<Token> text = run(400, 5000);
  write(*store, text);
  const auto files = files_with(folder_.string(), "").size();
  const auto match = store->find({.tokens = text});
  ASSERT_TRUE(match);
  class Running : public FakeState {
   public:
    using FakeState::FakeState;
    Result<void> add_block(std::span<const std::byte> bytes) override {
      if (!none) none.emplace();
      return FakeState::add_block(bytes);
    }
    std::optional<NoMoreFiles> none;
  };
  {
    Running sink(text);
    EXPECT_EQ(store->read(*match, sink).error().code, ErrorCode::io);
    EXPECT_GE(sink.blocks, 8u);
  }
  EXPECT_EQ(store->stats().damaged, 0u);
  EXPECT_EQ(files_with(folder_.string(), "").size(), files);
  EXPECT_EQ(restore(*store, text), text.size());
  EXPECT_EQ(use_all(*store), texts_.size() + 1);
  EXPECT_TRUE(store->verify(true)->damaged.empty());
}

TEST_F(StoreDamage, FilesOfANewerVersionAreLeftAlone) {
  fill_folder();
  keep_original();
  for (const char* end : {".seg", ".fr", ".rp"}) {
    fs::remove_all(folder_);
    fs::copy(original_, folder_, fs::copy_options::recursive);
    const fs::path newer = files_with(folder_.string(), end).front();
    std::string bytes = read_file(newer);
    bytes[8] = 2;
    write_file(newer, bytes);
    fs::remove(folder_ / "index.sqlite");
    const size_t segments = files_with(folder_.string(), ".seg").size();
    const size_t frontiers = files_with(folder_.string(), ".fr").size();
    auto store = open();
    use_all(*store);
    EXPECT_EQ(read_file(newer), bytes);
    // What it may need, and what may need it, is there as well.
    EXPECT_EQ(files_with(folder_.string(), ".seg").size(), segments);
    EXPECT_EQ(files_with(folder_.string(), ".fr").size(), frontiers);
    EXPECT_EQ(store->stats().damaged, 0u);
    expect_recovery(*store, end);
  }
}

TEST_F(StoreDamage, WhatTheEngineRefusesForItsContentGoes) {
  class Refusing : public FakeState {
   public:
    Refusing(std::vector<Token> tokens, ErrorCode code) : FakeState(std::move(tokens)), code_(code) {}
    Result<void> add_frontier(std::span<const std::byte>) override { return Error{code_, "refused"}; }

   private:
    ErrorCode code_;
  };
  for (const bool bad : {false, true}) {
    for (const ErrorCode code :
         bad ? std::vector{ErrorCode::not_finite, ErrorCode::format, ErrorCode::invalid_argument}
             : std::vector{ErrorCode::out_of_memory, ErrorCode::cancelled, ErrorCode::io}) {
      fs::remove_all(folder_);
      auto store = open();
      write(*store, run(10));
      write(*store, run(20));
      Refusing sink(run(20), code);
      const auto match = store->find({.tokens = run(20)});
      ASSERT_TRUE(match);
      EXPECT_EQ(store->read(*match, sink).error().code, code);
      EXPECT_EQ(restore(*store, run(20)), bad ? 10u : 20u);
    }
  }
}

TEST_F(StoreDamage, WhatWasNotFinishedGoes) {
  fill_folder();
  keep_original();
  check("temporary files", false, [&] {
    write_file(folder_ / "tmp" / (std::string(fingerprint_a) + ".seg"), "unfinished");
    open();
    EXPECT_TRUE(fs::is_empty(folder_ / "tmp"));
  });
  check("a segment without a frontier", false, [&] {
    for (const auto& file : files_with(folder_.string(), ".fr")) fs::remove(file);
    open();
    EXPECT_TRUE(files_with(folder_.string(), ".seg").empty());
  });
  check("links and folders in place of files", false, [&] {
    const auto file = files_with(folder_.string(), ".fr").front();
    fs::remove(file);
    fs::create_symlink("/etc/passwd", file);
    const auto segment = files_with(folder_.string(), ".seg").front();
    fs::remove(segment);
    fs::create_directory(segment);
    open();
    fs::remove_all(segment);
    fs::remove(file);
  });
}

}  // namespace
}  // namespace ds4::store
