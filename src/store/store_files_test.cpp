// Which folders a store takes, and what it removes from them.
#include "store/store_files.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <new>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;
namespace fs = std::filesystem;

class StoreFolderTest : public StoreTest {
 protected:
  void make(mode_t mode) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
  }
  mode_t mode() const {
    struct stat status{};
    return stat(folder_.c_str(), &status) == 0 ? status.st_mode & 0777 : 0;
  }
  std::optional<ErrorCode> refusal() const {
    const auto folder = StoreFolder::open(folder_.string());
    return folder ? std::nullopt : std::optional(folder.error().code);
  }
};

TEST_F(StoreFolderTest, OnlyOurOwnUnfinishedFilesAreRemoved) {
  make(0700);
  fs::create_directory(folder_ / "tmp");
  const std::string name = std::string(fingerprint_a) + ".seg";
  for (const char* other : {"letter.txt", "something.seg", "0123.fr", "00112233445566778899aabbccddeeff"}) {
    write_file(folder_ / "tmp" / other, "not ours");
  }
  write_file(folder_ / "tmp" / name, "unfinished");
  write_file(folder_ / "letter.txt", "not ours");
  ASSERT_TRUE(open());
  EXPECT_FALSE(fs::exists(folder_ / "tmp" / name));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "tmp"), {}), 4);
  EXPECT_TRUE(fs::exists(folder_ / "letter.txt"));
}

TEST_F(StoreFolderTest, FoldersThatOthersCanUseAreRefused) {
  for (const mode_t shared : {0770, 0707, 0777}) {
    make(shared);
    EXPECT_EQ(refusal(), ErrorCode::invalid_argument);
    EXPECT_TRUE(fs::is_empty(folder_));
  }
  make(0755);
  EXPECT_EQ(refusal(), std::nullopt) << "an empty one becomes private";
  EXPECT_EQ(mode(), 0700u);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_EQ(refusal(), std::nullopt) << "and so does one that is ours";
  EXPECT_EQ(mode(), 0700u);
  make(0755);
  write_file(folder_ / "letter.txt", "not ours");
  EXPECT_EQ(refusal(), ErrorCode::invalid_argument);
  EXPECT_EQ(mode(), 0755u);
  make(0700);
  fs::create_directory(folder_ / "tmp");
  ASSERT_EQ(chmod((folder_ / "tmp").c_str(), 0777), 0);
  EXPECT_EQ(refusal(), ErrorCode::invalid_argument);
  if (geteuid() == 0) {
    make(0700);
    ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
    EXPECT_EQ(refusal(), ErrorCode::invalid_argument);
  }
}

TEST_F(StoreFolderTest, LinksAreFollowedToTheFolderOnly) {
  const fs::path target = folder_.string() + "-target";
  fs::create_directory(target);
  ASSERT_EQ(chmod(target.c_str(), 0700), 0);
  fs::create_directory_symlink(target, folder_);
  EXPECT_EQ(refusal(), std::nullopt);
  EXPECT_TRUE(fs::is_directory(target / "segments"));
  fs::remove(target / "tmp");
  fs::create_directory(target / "elsewhere");
  fs::create_directory_symlink(target / "elsewhere", target / "tmp");
  EXPECT_EQ(refusal(), ErrorCode::invalid_argument);
  fs::remove_all(target);
}

TEST_F(StoreFolderTest, TheIndexOfAnotherProgramStays) {
  make(0700);
  write_file(folder_ / "index.sqlite", "of another program");
  EXPECT_FALSE(StateStore::open(options()));
  EXPECT_EQ(read_file(folder_ / "index.sqlite"), "of another program");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(StoreFolderTest, ReadingWithoutMemoryIsAnError) {
  class Throwing : public FakeState {
   public:
    using FakeState::FakeState;
    Result<void> add_block(std::span<const std::byte>) override { throw std::bad_alloc(); }
  };
  auto store = open();
  write(*store, run(400));
  Throwing sink(run(400));
  EXPECT_EQ(store->read(*store->find({.tokens = run(400)}), sink).error().code, ErrorCode::out_of_memory);
  EXPECT_EQ(restore(*store, run(400)), 400u);
}

#ifndef DS4_SANITIZED  // they end the program themselves
TEST_F(StoreFolderTest, ABlockThatFitsNoMemoryIsAnError) {
  auto store = open();
  write(*store, run(8));
  const fs::path file = files_with(folder_.string(), ".seg").front();
  StateStoreOptions large = options();
  large.block_bytes = uint64_t{1} << 48;  // more than there are addresses
  large.directory.budget_bytes = UINT64_MAX;
  auto reader = open(large);
  const auto input = InputFile::open(file.string());
  ASSERT_TRUE(input);
  auto header = parse_segment(*input->read_header(FileKind::segment), input->bytes);
  ASSERT_TRUE(header);
  header->block_bytes = large.block_bytes;
  const auto bytes = encode(*header);
  write_file(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (truncate(file.c_str(), static_cast<off_t>(header->file_bytes())) != 0) GTEST_SKIP();
  const auto match = store->find({.tokens = run(8)});
  ASSERT_TRUE(match);
  FakeState sink(run(8));
  EXPECT_EQ(reader->read(*match, sink).error().code, ErrorCode::out_of_memory);
}
#endif

}  // namespace
}  // namespace ds4::store
