#include "text/bpe.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "text/byte_alphabet.hpp"
#include "text/test_vocabulary.hpp"
#include "text/utf8.hpp"

namespace ds4::text {
namespace {

/// Merging by the definition: strings, one merge at a time.
std::vector<std::string> merge_by_definition(
    std::string_view piece, const std::map<std::pair<std::string, std::string>, size_t>& ranks) {
  std::vector<std::string> symbols;
  for (const char c : piece)
    append_utf8(symbols.emplace_back(), kByteAlphabet[static_cast<unsigned char>(c)]);
  while (true) {
    size_t best = 0;
    size_t best_rank = SIZE_MAX;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best_rank == SIZE_MAX) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

struct Table {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;

  Result<BytePairMerges> make() const {
    const std::vector<std::string_view> views(merges.begin(), merges.end());
    return BytePairMerges::create(tokens.size(), views, [this](std::string_view string) -> Token {
      const auto found = std::find(tokens.begin(), tokens.end(), string);
      return found == tokens.end() ? -1 : static_cast<Token>(found - tokens.begin());
    });
  }
};

TEST(BytePairMerges, AgreesWithTheDefinitionOnRandomTables) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    Table table;
    table.tokens = {"a", "b", "c"};
    std::map<std::pair<std::string, std::string>, size_t> ranks;
    for (size_t rank = 0; rank < 40; ++rank) {
      const std::string left = table.tokens[random() % table.tokens.size()];
      const std::string right = table.tokens[random() % table.tokens.size()];
      if (left.size() + right.size() > 12) continue;
      ranks[{left, right}] = table.merges.size();
      table.merges.push_back(left + " " + right);
      table.tokens.push_back(left + right);
    }
    // Ranks in another order than that of construction: a merge may then make a pair of a lower rank.
    std::shuffle(table.merges.begin(), table.merges.end(), random);
    ranks.clear();
    for (size_t rank = 0; rank < table.merges.size(); ++rank) {
      const size_t space = table.merges[rank].find(' ');
      ranks[{table.merges[rank].substr(0, space), table.merges[rank].substr(space + 1)}] = rank;
    }
    const auto merges = table.make();
    ASSERT_TRUE(merges);
    for (const size_t length : {1, 2, 3, 10, 63, 64, 65, 200, 500}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece.push_back(static_cast<char>('a' + random() % 3));
      std::vector<Token> tokens;
      merges->encode(piece, tokens);
      std::vector<std::string> strings;
      for (const Token token : tokens) strings.push_back(table.tokens[static_cast<size_t>(token)]);
      ASSERT_EQ(strings, merge_by_definition(piece, ranks)) << piece;
    }
  }
}

TEST(BytePairMerges, LastOfEqualMergesCounts) {
  Table table{{"a", "b", "c", "ab", "bc"}, {"a b", "b c", "a b"}};
  std::vector<Token> tokens;
  table.make()->encode("abc", tokens);
  EXPECT_EQ(tokens, (std::vector<Token>{0, 4}));
}

TEST(BytePairMerges, SymbolsWithoutATokenAreSteppingStones) {
  Table table{{"a", "b", "c", "abc"}, {"a b", "ab c"}};
  std::vector<Token> tokens;
  table.make()->encode("abcab", tokens);
  EXPECT_EQ(tokens, (std::vector<Token>{3, 0, 1}));
  tokens.clear();
  table.make()->encode("azb", tokens);
  EXPECT_EQ(tokens, (std::vector<Token>{0, 1})) << "z has no token";
}

TEST(BytePairMerges, LongChainWithoutTokens) {
  Table table{{"a"}, {}};
  std::string left = "a";
  for (int i = 0; i < 2000; ++i) {
    table.merges.push_back(left + " a");
    left += "a";
  }
  std::vector<Token> tokens;
  table.make()->encode(std::string(5000, 'a'), tokens);
  EXPECT_EQ(tokens, std::vector<Token>(5000, 0));
}

TEST(BytePairMerges, RefusesMalformedLines) {
  for (const std::string line : {"ab", "a  b", " ab", "ab ", "a b c", "", " "}) {
    const auto merges = Table{{"a", "b"}, {"a b", line}}.make();
    ASSERT_FALSE(merges) << line;
    EXPECT_NE(merges.error().message.find("merge 1 "), std::string::npos) << merges.error().message;
  }
}

}  // namespace
}  // namespace ds4::text
