#include "program.hpp"

#include <gtest/gtest.h>

#include "store/store_fixture.hpp"

namespace ds4::kv {
namespace {

using namespace store;
using namespace store::testing;

class KvProgram : public StoreTest {
 protected:
  struct Run {
    int status = 0;
    std::string output, errors;
  };
  static Run run_with(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "ds4-kv");
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Run run;
    run.status = run_program(static_cast<int>(arguments.size()), arguments.data());
    std::fflush(stdout);
    run.output = ::testing::internal::GetCapturedStdout();
    run.errors = ::testing::internal::GetCapturedStderr();
    return run;
  }
};

TEST_F(KvProgram, ListsShowsPinsAndPurges) {
  auto store = open();
  write(*store, run(20), {.reason = SaveReason::cold, .anchor = true});
  const std::string key = write(*store, run(31), {.reason = SaveReason::turn}).key.hex();
  const std::string folder = folder_.string();
  Run result = run_with({"list", folder.c_str()});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.output.find(key.substr(0, 12)), std::string::npos);
  EXPECT_NE(result.output.find("cold"), std::string::npos);
  EXPECT_NE(result.output.find("2 states"), std::string::npos);
  EXPECT_NE(run_with({"list", folder.c_str(), "--json"}).output.find("\"tokens\":31"), std::string::npos);
  result = run_with({"show", folder.c_str(), key.substr(0, 8).c_str()});
  EXPECT_EQ(result.status, 0);
  EXPECT_NE(result.output.find(key), std::string::npos);
  EXPECT_EQ(run_with({"pin", folder.c_str(), key.c_str()}).status, 0);
  EXPECT_NE(run_with({"show", folder.c_str(), key.c_str()}).output.find("pinned"), std::string::npos);
  EXPECT_EQ(run_with({"purge", folder.c_str(), "--all"}).output, "1 states removed\n");
  EXPECT_EQ(restore(*store, run(40)), 31u);
  result = run_with({"purge", folder.c_str(), key.c_str()});
  EXPECT_EQ(result.status, 2);
  EXPECT_NE(result.errors.find("pinned"), std::string::npos);
  EXPECT_EQ(run_with({"unpin", folder.c_str(), key.c_str()}).status, 0);
  EXPECT_EQ(run_with({"purge", folder.c_str(), key.c_str()}).output, "1 states removed\n");
  EXPECT_EQ(restore(*store, run(40)), 0u);
}

TEST_F(KvProgram, FindsDamage) {
  auto store = open();
  write(*store, run(20));
  const std::string folder = folder_.string();
  EXPECT_EQ(run_with({"verify", folder.c_str()}).status, 0);
  const auto file = files_with(folder, ".seg").front();
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(file, bytes);
  const Run found = run_with({"verify", folder.c_str()});
  EXPECT_EQ(found.status, 1);
  EXPECT_NE(found.output.find(file.filename().string()), std::string::npos);
  EXPECT_EQ(run_with({"verify", folder.c_str(), "--drop"}).status, 1);
  EXPECT_EQ(run_with({"verify", folder.c_str()}).status, 0);
}

TEST_F(KvProgram, WrongUsageHasItsOwnStatus) {
  const std::string folder = folder_.string();
  EXPECT_EQ(run_with({}).status, 2);
  EXPECT_EQ(run_with({"dance"}).status, 2);
  EXPECT_NE(run_with({"dance"}).errors.find("'dance'"), std::string::npos);
  EXPECT_EQ(run_with({"list"}).status, 2);
  EXPECT_EQ(run_with({"--help"}).status, 0);
  EXPECT_EQ(run_with({"--version"}).status, 0);
  EXPECT_EQ(run_with({"list", folder.c_str()}).status, 1) << "no such folder";
  EXPECT_FALSE(std::filesystem::exists(folder_));
  std::filesystem::create_directories(folder_ / "segments");  // of something else
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  EXPECT_EQ(run_with({"list", folder.c_str()}).status, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "lock"));
  auto store = open();
  EXPECT_EQ(run_with({"purge", folder.c_str()}).status, 2);
  const Run range = run_with({"purge", folder.c_str(), "--unused-for", "-1"});
  EXPECT_EQ(range.status, 2);
  EXPECT_NE(range.errors.find("100000"), std::string::npos);
  EXPECT_LT(range.errors.size(), 200u);
  EXPECT_EQ(run_with({"show", folder.c_str(), "12"}).status, 2);
  EXPECT_EQ(run_with({"show", folder.c_str(), "12345678"}).status, 1);
  EXPECT_EQ(run_with({"list", folder.c_str()}).status, 0);
}

}  // namespace
}  // namespace ds4::kv
