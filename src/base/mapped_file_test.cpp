#include "base/mapped_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

namespace ds4 {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ds4-test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  static std::string text(const MappedFile& file) {
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  }

  std::string folder_;
};

TEST_F(MappedFileTest, ReadsTheContent) {
  const std::string path = write("a", "some bytes");
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(text(*file), "some bytes");
  EXPECT_EQ(file->path(), path);
}

TEST_F(MappedFileTest, AnEmptyFileIsAnEmptySpan) {
  const auto file = MappedFile::open(write("empty", ""));
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, MovesKeepTheMapping) {
  auto first = MappedFile::open(write("a", "first"));
  auto second = MappedFile::open(write("b", "second"));
  ASSERT_TRUE(first && second);
  MappedFile moved = std::move(*first);
  EXPECT_EQ(text(moved), "first");
  moved = std::move(*second);
  EXPECT_EQ(text(moved), "second");
  EXPECT_THAT(moved.path(), HasSubstr("/b"));
}

TEST_F(MappedFileTest, NamesWhatCannotBeMapped) {
  const auto missing = MappedFile::open(folder_ + "/missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_THAT(missing.error().message, StartsWith(folder_ + "/missing: cannot be opened"));

  const auto directory = MappedFile::open(folder_);
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::io);
  EXPECT_EQ(directory.error().message, folder_ + ": is a directory, not a file");

  EXPECT_EQ(MappedFile::open("").error().code, ErrorCode::invalid_argument);
}

TEST_F(MappedFileTest, DroppedPagesAreReadAgain) {
  const std::string path = folder_ + "/pages", content(100'000, 'x');
  std::ofstream(path) << content;
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file);
  EXPECT_EQ(text(*file), content);
  for (const size_t begin : {0u, 1u, 5000u, 99'999u}) drop_mapped_pages(file->bytes().subspan(begin));
  drop_mapped_pages({});
  EXPECT_EQ(text(*file), content);
}

TEST_F(MappedFileTest, APipeIsRefusedWithoutWaiting) {
  const std::string path = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto file = MappedFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message, path + ": is not a regular file");
}

}  // namespace
}  // namespace ds4
