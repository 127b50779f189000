// What goes wrong around a store and is not its files' fault: a disk that is full from the start, folders
// that somebody removes, a writer that hangs.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

namespace fs = std::filesystem;
using namespace testing;

class StoreTrouble : public StoreTest {};

/// Files cannot grow beyond a few bytes, as if the disk was full.
class FullDisk {
 public:
  FullDisk() : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{5000, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(StoreTrouble, AStoreOpensOnAFullDiskAndIsOfUseLater) {
  write(*open(), run(40));
  // Whoever is the last to leave may have taken the journal with him.
  for (const char* end : {"-wal", "-shm"}) fs::remove(folder_ / ("index.sqlite" + std::string(end)));
  std::unique_ptr<StateStore> store;
  {
    const FullDisk now;
    store = open();
    ASSERT_TRUE(store);
    EXPECT_FALSE(store->write(FakeState(run(40, 1000)), {}));
    EXPECT_FALSE(StoreDirectory::open(options().directory)) << "a tool says at once that it can do nothing";
  }
  EXPECT_FALSE(log_.empty());
  EXPECT_LE(log_.size(), 3u);
  EXPECT_EQ(restore(*store, run(40)), 40u);
  write(*store, run(40, 1000));
  EXPECT_EQ(restore(*store, run(40, 1000)), 40u);
}

TEST_F(StoreTrouble, WhatSomebodyRemovedIsMadeAgain) {
  for (const char* part : {"", "tmp", "segments", "frontiers", "replies", "lock"}) {
    fs::remove_all(folder_);
    const auto store = open();
    write(*store, run(40));
    fs::remove_all(folder_ / part);
    write(*store, run(40, 1000));
    EXPECT_EQ(restore(*store, run(40, 1000)), 40u) << part;
    ASSERT_TRUE(store->put_reply(std::vector<std::string_view>{"key"}, std::vector<std::byte>(10))) << part;
    EXPECT_TRUE(store->get_reply("key")) << part;
    EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
    fs::remove_all(folder_ / part);
    EXPECT_TRUE(StateStore::open(options())) << part;
  }
}

// All of them at once, and the folder stays: what `rm -rf folder/*` does.
TEST_F(StoreTrouble, AnEmptiedFolderIsFilledAgain) {
  const auto store = open();
  write(*store, run(40));
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(folder_)) all.push_back(entry.path());
  for (const fs::path& path : all) fs::remove_all(path);
  EXPECT_EQ(restore(*store, run(40)), 0u);
  write(*store, run(40));
  EXPECT_EQ(restore(*store, run(40)), 40u);
}

TEST_F(StoreTrouble, BehindAWriterThatHangsDamageIsForgottenAndFilesStay) {
  const auto store = open();
  write(*store, run(40));
  ASSERT_TRUE(store->put_reply(std::vector<std::string_view>{"key"}, std::vector<std::byte>(10)));
  const std::vector<fs::path> files = {files_with(folder_.string(), ".seg").front(),
                                       files_with(folder_.string(), ".rp").front()};
  for (const fs::path& path : files) {
    std::string bytes = read_file(path);
    bytes.back() ^= 1;
    write_file(path, bytes);
  }
  {
    const auto lock = WriterLock::acquire(store->folder().lock_path(), std::chrono::milliseconds(0));
    ASSERT_TRUE(lock);
    EXPECT_EQ(restore(*store, run(40)), 0u);
    EXPECT_EQ(store->get_reply("key"), std::nullopt);
  }
  EXPECT_EQ(log_.size(), 2u);
  EXPECT_FALSE(store->find({.tokens = run(40)}));
  // The other writer may just have put sound ones of the same names in their places.
  for (const fs::path& path : files) EXPECT_TRUE(fs::exists(path)) << path;
  write(*store, run(40));
  EXPECT_EQ(restore(*store, run(40)), 40u);
}

}  // namespace
}  // namespace ds4::store
