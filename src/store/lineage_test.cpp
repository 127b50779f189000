// How states are found to continue each other, whatever order they come in.
#include "store/lineage.hpp"

#include <gtest/gtest.h>

#include <map>

#include "store/store_fixture.hpp"

namespace ds4::store {
namespace {

using namespace testing;

class LineageTest : public StoreTest {};

TEST_F(LineageTest, EveryStateKnowsTheLongestBeforeIt) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    std::filesystem::remove_all(folder_);
    auto store = open();
    // Texts of few words, so that they branch at all places; anchors, so that none is thinned.
    std::map<std::string, std::vector<Token>> texts;
    for (int i = 0; i < 40; ++i) {
      std::vector<Token> text;
      if (!texts.empty() && random() % 4 != 0) {
        auto other = texts.begin();
        std::advance(other, random() % texts.size());
        text.assign(other->second.begin(),
                    other->second.begin() + static_cast<ptrdiff_t>(random() % other->second.size()));
      }
      const size_t more = 2 + random() % 50;
      for (size_t t = 0; t < more; ++t) text.push_back(static_cast<Token>(random() % 2));
      texts[write(*store, text, {.anchor = true}).key.hex()] = text;
      if (random() % 10 == 0) {
        const auto key = Hash128::from_hex(texts.begin()->first);
        ASSERT_EQ(*store->purge({.key = key}), 1u);
        texts.erase(texts.begin());
      }
    }
    const auto check = [&] {
      const auto entries = store->list();
      ASSERT_TRUE(entries);
      ASSERT_EQ(entries->size(), texts.size());
      for (const StoreEntry& entry : *entries) {
        const auto& text = texts.at(entry.key.hex());
        std::string longest;
        for (const auto& [key, other] : texts) {
          const bool begins =
              other.size() < text.size() && std::equal(other.begin(), other.end(), text.begin());
          if (begins && (longest.empty() || other.size() > texts.at(longest).size())) longest = key;
        }
        EXPECT_EQ(entry.parent ? entry.parent->hex() : "", longest) << "seed " << seed;
        EXPECT_EQ(restore(*store, text), text.size());
      }
    };
    check();
    // In a new index too.
    store.reset();
    std::filesystem::remove(folder_ / "index.sqlite");
    store = open();
    check();
  }
}

}  // namespace
}  // namespace ds4::store
