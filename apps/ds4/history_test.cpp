#include "history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace ds4::cli {
namespace {

using testing::ElementsAre;
namespace fs = std::filesystem;

class HistoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "ds4-history-XXXXXX";
    folder = ::mkdtemp(pattern.data());
    path = (folder / "h").string();
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder;
  std::string path;
};

TEST_F(HistoryTest, SurvivesARestart) {
  {
    History h(path);
    h.add("one");
    h.add("two\nlines \\n");
    h.add("two\nlines \\n");
    h.add("");
  }
  EXPECT_THAT(History(path).entries(), ElementsAre("one", "two\nlines \\n"));
  EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), 0600u);
}

TEST_F(HistoryTest, TightensPermissions) {
  std::ofstream(path) << "old\n";
  fs::permissions(path, fs::perms(0644));
  History(path).add("new");
  EXPECT_EQ(static_cast<unsigned>(fs::status(path).permissions()), 0600u);
  EXPECT_THAT(History(path).entries(), ElementsAre("old", "new"));
}

TEST_F(HistoryTest, KeepsTheLast512) {
  {
    std::ofstream file(path);
    for (int i = 0; i < 600; ++i) file << "entry " << i << "\n";
  }
  History h(path);
  EXPECT_EQ(h.entries().size(), 512u);
  EXPECT_EQ(h.entries().front(), "entry 88");
  h.add("last");
  EXPECT_EQ(h.entries().size(), 512u);
  EXPECT_EQ(h.entries().front(), "entry 89");
  EXPECT_EQ(History(path).entries().back(), "last");
}

TEST_F(HistoryTest, LongEntriesStayInMemory) {
  History h(path);
  h.add(std::string(200000, 'x'));
  EXPECT_EQ(h.entries().size(), 1u);
  EXPECT_TRUE(History(path).entries().empty());
}

TEST_F(HistoryTest, AnUnusableFileIsIgnored) {
  History h(folder.string());
  h.add("x");
  EXPECT_THAT(h.entries(), ElementsAre("x"));
}

}  // namespace
}  // namespace ds4::cli
