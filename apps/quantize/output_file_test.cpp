// Whether the disk has room for a file, and what may take its place.
#include "output_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace ds4::quantize {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(OutputFile, TheRoomOfAllFilesOfADiskIsLookedAt) {
  const std::string folder = ::testing::TempDir() + "ds4_output_space";
  fs::create_directories(folder);
  const uint64_t available = fs::space(folder).available;
  // Other programs write too: far from the border on both sides.
  EXPECT_TRUE(check_space(std::vector{OutputSize{folder + "/a", available / 4}}));
  const auto full = check_space(std::vector{OutputSize{folder + "/a", 2 * available}});
  ASSERT_FALSE(full);
  EXPECT_THAT(full.error().message, HasSubstr("more bytes are needed on its disk"));
  EXPECT_FALSE(check_space(std::vector{OutputSize{folder + "/a", available / 3 * 2},
                                       OutputSize{folder + "/b", available / 3 * 2}}));
  // What an earlier run wrote need not be written again; a hole in a file counts as written.
  const std::ofstream part(folder + "/a.tmp");
  fs::resize_file(folder + "/a.tmp", available);
  EXPECT_TRUE(check_space(std::vector{OutputSize{folder + "/a", available + available / 4}}));
  fs::remove_all(folder);
}

TEST(OutputFile, AFolderThatTakesNoFilesIsNamed) {
  EXPECT_TRUE(check_folder(::testing::TempDir() + "file"));
  const auto nowhere = check_folder(::testing::TempDir() + "ds4_no_folder/file");
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("ds4_no_folder/file: no file can be made in its folder"));
}

}  // namespace
}  // namespace ds4::quantize
