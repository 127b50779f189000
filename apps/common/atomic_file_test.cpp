#include "common/atomic_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace ds4::cli {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "ds4-atomic-XXXXXX";
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder); }

  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder), {})); }
  static std::string content(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  fs::path folder;
};

TEST_F(AtomicFileTest, AppearsOnCommitOnly) {
  const fs::path path = folder / "out.json";
  {
    auto file = AtomicFile::create(path.string());
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write("abc"));
    EXPECT_FALSE(fs::exists(path));
    ASSERT_TRUE(file->commit());
  }
  EXPECT_EQ(content(path), "abc");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, LeavesTheOldFileWhenAbandoned) {
  const fs::path path = folder / "out.json";
  std::ofstream(path) << "old";
  {
    auto file = AtomicFile::create(path.string());
    ASSERT_TRUE(file->write("new"));
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, KeepsLinksAndPermissions) {
  const fs::path path = folder / "out.json", link = folder / "link";
  std::ofstream(path) << "old";
  ::chmod(path.c_str(), 0640);
  fs::create_symlink(path, link);
  {
    auto file = AtomicFile::create(link.string());
    ASSERT_TRUE(file->write("new"));
    ASSERT_TRUE(file->commit());
  }
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content(path), "new");
  EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), 0640u);
}

TEST_F(AtomicFileTest, LinksThatLeadNowhereStay) {
  const fs::path dangling = folder / "dangling", loop = folder / "loop";
  fs::create_symlink(folder / "nothing", dangling);
  fs::create_symlink(loop, loop);
  for (const fs::path& link : {dangling, loop}) {
    EXPECT_FALSE(AtomicFile::create(link.string())) << link;
    EXPECT_TRUE(fs::is_symlink(link)) << link;
  }
  EXPECT_EQ(entries(), 2u);
}

TEST_F(AtomicFileTest, DevicesAreWrittenDirectly) {
  {
    auto file = AtomicFile::create("/dev/null");
    ASSERT_TRUE(file);
    EXPECT_TRUE(file->write("x"));
    EXPECT_TRUE(file->commit());
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  auto full = AtomicFile::create("/dev/full");
  ASSERT_TRUE(full);
  EXPECT_FALSE(full->write("x"));
}

TEST_F(AtomicFileTest, TheFileOfStandardOutputIsContinued) {
  const fs::path path = folder / "out.txt";
  const int kept = ::dup(STDOUT_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ASSERT_EQ(::write(file, "before ", 7), 7);
  std::fflush(stdout);
  ::dup2(file, STDOUT_FILENO);
  {
    auto out = AtomicFile::create("/dev/stdout");
    EXPECT_TRUE(out && out->write("dump ") && out->commit());
  }
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  ASSERT_EQ(::write(file, "after", 5), 5);
  ::close(file);
  EXPECT_EQ(content(path), "before dump after");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(AtomicFileTest, MissingFolderAndFolderAsFile) {
  EXPECT_FALSE(AtomicFile::create((folder / "no" / "out").string()));
  EXPECT_FALSE(AtomicFile::create(folder.string()));
}

}  // namespace
}  // namespace ds4::cli
