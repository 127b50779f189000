// Reference files: what is written is read, damage is seen, and divergences are those of the definition.
#include "reference_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "score.hpp"

namespace ds4::quantize {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t vocabulary = 50;

std::vector<float> logits_of(int seed) {
  std::vector<float> logits(vocabulary);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = 4 * std::sin(static_cast<float>(seed * 31 + static_cast<int>(i * i)));
  return logits;
}

std::vector<double> probabilities(const std::vector<float>& logits) {
  double sum = 0;
  std::vector<double> p;
  for (const float logit : logits) {
    p.push_back(std::exp(double{logit}));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

class Reference : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  void write(uint32_t kept) {
    const ReferenceHeader header{std::string(32, 'f'), vocabulary, kept, "a model"};
    auto writer = ReferenceWriter::create(path_, header);
    ASSERT_TRUE(writer) << writer.error().message;
    int seed = 0;
    for (const ScoreItem& item : items_) {
      ASSERT_TRUE(writer->begin_item(item));
      for (size_t i = item.begin; i < item.tokens.size(); ++i)
        ASSERT_TRUE(writer->add_position(logits_of(seed++), item.tokens[i]));
    }
    ASSERT_TRUE(writer->commit());
  }

  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  void replace_content(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  /// With a hash that fits, so that the other checks are reached.
  void replace_hashed(std::string bytes) const {
    bytes.resize(bytes.size() - 32);
    ContentHash hash;
    hash.add(bytes.data(), bytes.size());
    replace_content(bytes + hash.hexadecimal());
  }

  const std::string path_ = ::testing::TempDir() + "ds4_reference_" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::vector<ScoreItem> items_ = {{"first", ItemKind::text, {3, 1, 4, 1, 5}, 1},
                                         {"second", ItemKind::continuation, {9, 2, 6}, 2}};
};

TEST_F(Reference, WhatIsWrittenIsRead) {
  for (const uint32_t kept : {vocabulary, vocabulary - 1, 7u, 1u}) {
    write(kept);
    const auto file = ReferenceFile::open(path_);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->header().model, "a model");
    EXPECT_EQ(file->header().kept, kept);
    ASSERT_EQ(file->items().size(), 2u);
    EXPECT_EQ(file->items()[1].id, "second");
    EXPECT_EQ(file->items()[1].kind, ItemKind::continuation);
    EXPECT_THAT(file->items()[0].tokens, ElementsAre(3, 1, 4, 1, 5));
    ReferencePosition position;
    int seed = 0;
    for (size_t item = 0; item < 2; ++item) {
      for (size_t i = 0; i < items_[item].scored(); ++i, ++seed) {
        ASSERT_TRUE(file->read(item, i, position));
        const auto p = probabilities(logits_of(seed));
        const Token target = items_[item].tokens[items_[item].begin + i];
        EXPECT_NEAR(std::exp(position.target_logprob), p[static_cast<size_t>(target)], 1e-6);
        EXPECT_EQ(position.likeliest, std::max_element(p.begin(), p.end()) - p.begin());
        double kept_sum = 0;
        for (size_t k = 0; k < kept; ++k) {
          const size_t id = kept == vocabulary ? k : static_cast<size_t>(position.ids[k]);
          EXPECT_NEAR(std::exp(position.logprobs[k]), p[id], 1e-6);
          kept_sum += p[id];
        }
        EXPECT_NEAR(kept_sum + std::exp(position.rest_logprob), 1, 1e-5);
        EXPECT_NEAR(divergence(position, logits_of(seed)), 0, 1e-6) << "from itself";
      }
    }
  }
}

TEST_F(Reference, DivergencesAreThoseOfTheDefinition) {
  const auto p = probabilities(logits_of(0)), q = probabilities(logits_of(99));
  double expected = 0;
  for (size_t i = 0; i < vocabulary; ++i) expected += p[i] * std::log(p[i] / q[i]);
  ReferencePosition position;
  write(vocabulary);
  ASSERT_TRUE(ReferenceFile::open(path_)->read(0, 0, position));
  EXPECT_NEAR(divergence(position, logits_of(99)), expected, 1e-5);
  // What is not kept counts as one outcome.
  write(10);
  ASSERT_TRUE(ReferenceFile::open(path_)->read(0, 0, position));
  double kept = 0, p_rest = 1, q_rest = 1;
  for (const Token id : position.ids) {
    const auto i = static_cast<size_t>(id);
    kept += p[i] * std::log(p[i] / q[i]);
    p_rest -= p[i];
    q_rest -= q[i];
  }
  EXPECT_NEAR(divergence(position, logits_of(99)), kept + p_rest * std::log(p_rest / q_rest), 1e-5);
  EXPECT_LT(divergence(position, logits_of(99)), expected + 1e-6) << "never more than the whole";
}

TEST_F(Reference, ImpossibleTokensDoNotMakeItInfinite) {
  write(vocabulary);
  ReferencePosition position;
  ASSERT_TRUE(ReferenceFile::open(path_)->read(0, 0, position));
  auto logits = logits_of(0);
  logits[static_cast<size_t>(position.likeliest)] = -INFINITY;
  const double value = divergence(position, logits);
  EXPECT_TRUE(std::isfinite(value) && value > 10) << value;
}

TEST_F(Reference, EveryCutAndEveryChangedByteIsSeen) {
  write(3);
  const std::string good = content();
  for (size_t length = 0; length < good.size(); ++length) {
    replace_content(good.substr(0, length));
    ASSERT_FALSE(ReferenceFile::open(path_)) << length;
  }
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bytes = good;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x41);
    replace_content(bytes);
    ASSERT_FALSE(ReferenceFile::open(path_)) << i;
  }
}

TEST_F(Reference, HashedNonsenseIsRefusedToo) {
  write(3);
  const std::string good = content();
  const auto put = [](std::string bytes, size_t at, uint32_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return bytes;
  };
  const size_t items = 8 + 12 + 4 + 32 + 4 + 7;
  const std::pair<size_t, uint32_t> cases[] = {
      {8, 2},                   // version
      {12, 0},                  // vocabulary
      {12, 5},                  // ids are outside it
      {16, 0},                  // kept
      {16, 51},                 // more than there are
      {20, 0xffffffff},         // length of a text
      {items, 2},               // kind
      {items + 4, 0xffffffff},  // tokens
      {items + 4, 1},           // none to score
      {items + 8, 0},           // none given
      {items + 8, 5},           // none to score
      {items + 21, 0xffffffff}  // a token
  };
  for (const auto& [at, value] : cases) {
    replace_hashed(put(good, at, value));
    EXPECT_FALSE(ReferenceFile::open(path_)) << at << " " << value;
  }
  // The first position: target, rest, three ids, three log-probabilities.
  const size_t position = items + 12 + 4 + 5 + 5 * 4;
  ReferencePosition read;
  for (const size_t at : {position + 8, position + 20}) {
    replace_hashed(put(good, at, 0x7fc00000));
    const auto file = ReferenceFile::open(path_);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_THAT(file->read(0, 0, read).error().message, HasSubstr("holds no probabilities"));
    EXPECT_TRUE(file->read(0, 1, read));
  }
}

TEST_F(Reference, GivenUpFilesDoNotAppear) {
  {
    auto writer = ReferenceWriter::create(path_, {std::string(32, 'f'), vocabulary, 3, "a model"});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->begin_item(items_[0]));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace ds4::quantize
