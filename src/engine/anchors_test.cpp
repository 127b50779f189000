#include "engine/anchors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace ds4 {
namespace {

/// An image that can be told from others.
class MarkedImage final : public backend::StateImage {
 public:
  explicit MarkedImage(size_t mark) : mark_(mark) {}
  size_t position() const override { return 0; }
  size_t size_bytes() const override { return mark_; }
  size_t own_bytes() const override { return 100; }

 private:
  size_t mark_;
};

Anchor anchor(size_t position, size_t mark = 0) {
  return {position, std::make_shared<MarkedImage>(mark)};
}

std::vector<size_t> positions(const Anchors& anchors, size_t end) {
  std::vector<size_t> out;
  for (const Anchor* a = anchors.find(end); a != nullptr;) {
    out.insert(out.begin(), a->position);
    a = a->position == 0 ? nullptr : anchors.find(a->position - 1);
  }
  return out;
}

TEST(Anchors, FindsTheNewestAtOrBefore) {
  Anchors anchors;
  EXPECT_EQ(anchors.find(1000), nullptr);
  for (size_t p : {128u, 256u, 384u}) anchors.add(anchor(p));
  EXPECT_EQ(anchors.find(0), nullptr);
  EXPECT_EQ(anchors.find(127), nullptr);
  EXPECT_EQ(anchors.find(128)->position, 128u);
  EXPECT_EQ(anchors.find(255)->position, 128u);
  EXPECT_EQ(anchors.find(256)->position, 256u);
  EXPECT_EQ(anchors.find(100000)->position, 384u);
}

TEST(Anchors, TruncateKeepsThePositionItself) {
  Anchors anchors;
  for (size_t p : {128u, 256u, 384u}) anchors.add(anchor(p));
  anchors.truncate(256);
  EXPECT_EQ(positions(anchors, 1000), (std::vector<size_t>{128, 256}));
  anchors.truncate(255);
  EXPECT_EQ(positions(anchors, 1000), (std::vector<size_t>{128}));
  anchors.truncate(0);
  EXPECT_EQ(anchors.size(), 0u);
}

TEST(Anchors, AddingTheSamePositionAgainReplacesIt) {
  Anchors anchors;
  anchors.add(anchor(128, 1));
  anchors.add(anchor(256, 2));
  anchors.add(anchor(256, 3));
  EXPECT_EQ(anchors.size(), 2u);
  EXPECT_EQ(anchors.find(256)->image->size_bytes(), 3u);
  EXPECT_EQ(anchors.find(255)->image->size_bytes(), 1u);
}

// What lies after a new anchor belongs to a way that was left.
TEST(Anchors, AddingAnEarlierPositionForgetsLaterOnes) {
  Anchors anchors;
  for (size_t p : {128u, 256u, 384u, 512u}) anchors.add(anchor(p, 1));
  anchors.add(anchor(300, 2));
  EXPECT_EQ(positions(anchors, 1000), (std::vector<size_t>{128, 256, 300}));
  EXPECT_EQ(anchors.find(1000)->image->size_bytes(), 2u);
}

TEST(Anchors, ThinningIsBoundedAndKeepsTheNewest) {
  Anchors anchors;
  for (size_t i = 1; i <= 8192; ++i) {
    anchors.add(anchor(i * 128));
    ASSERT_LE(anchors.size(), Anchors::max_count);
    ASSERT_EQ(anchors.size(), std::min(i, Anchors::max_count));
    // The three newest are always there: going back a little is the common case.
    for (size_t back = 0; back < std::min<size_t>(i, 3); ++back) {
      ASSERT_EQ(anchors.find((i - back) * 128)->position, (i - back) * 128) << i;
    }
  }
}

// Going back by n tokens evaluates at most twice as many again: gaps grow with the distance.
TEST(Anchors, GapsGrowWithTheDistanceFromTheEnd) {
  Anchors anchors;
  for (size_t i = 1; i <= 8192; ++i) {
    anchors.add(anchor(i * 128));
    const size_t end = i * 128;
    std::vector<size_t> kept = positions(anchors, end);
    ASSERT_EQ(kept.size(), anchors.size());
    kept.insert(kept.begin(), 0);  // without an anchor a session starts anew
    for (size_t k = 0; k + 1 < kept.size(); ++k) {
      const size_t gap = kept[k + 1] - kept[k], distance = end - kept[k + 1];
      ASSERT_LE(gap, 2 * (distance + 128)) << "end " << end << " at " << kept[k];
    }
  }
  const std::vector<size_t> kept = positions(anchors, 8192 * 128);
  EXPECT_LE(kept.front(), 8192u * 128 / 2);  // it reaches back over half of the sequence
  size_t near = 0, far = 0;
  for (size_t p : kept) (p > 8192 * 128 * 3 / 4 ? near : far) += 1;
  EXPECT_GT(near, far);
}

TEST(Anchors, PinnedOnesAreNotThinned) {
  Anchors anchors;
  EXPECT_FALSE(anchors.pin(128));
  for (size_t i = 1; i <= 4096; ++i) {
    anchors.add(anchor(i * 128));
    if (i == 7 || i == 8 || i == 300) {
      EXPECT_TRUE(anchors.pin(i * 128));
      EXPECT_TRUE(anchors.pin(i * 128));  // nothing new
    }
    ASSERT_EQ(anchors.size(), std::min(i, Anchors::max_count));
    ASSERT_EQ(anchors.find(i * 128)->position, i * 128);
  }
  EXPECT_FALSE(anchors.pin(129));
  for (const size_t i : {7u, 8u, 300u}) EXPECT_EQ(anchors.find(i * 128 + 1)->position, i * 128);
  anchors.truncate(8 * 128);
  EXPECT_EQ(positions(anchors, 8 * 128), (std::vector<size_t>{7 * 128, 8 * 128}));
}

TEST(Anchors, TheOldestOfTooManyPinnedIsLetGo) {
  Anchors anchors;
  for (size_t i = 1; i <= 4096; ++i) {
    anchors.add(anchor(i * 128));
    if (i <= Anchors::max_pinned + 2) anchors.pin(i * 128);
  }
  const std::vector<size_t> kept = positions(anchors, 4096 * 128);
  EXPECT_EQ(kept[0], 3 * 128u);
  EXPECT_EQ(kept[Anchors::max_pinned - 1], (Anchors::max_pinned + 2) * 128);
  EXPECT_EQ(kept.size(), Anchors::max_count);
}

TEST(Anchors, ReplacingAPinnedOneKeepsThePin) {
  Anchors anchors;
  for (const size_t mark : {1u, 2u}) {
    anchors.add(anchor(128, mark));
    if (mark == 1) anchors.pin(128);
  }
  for (size_t i = 2; i <= 1000; ++i) anchors.add(anchor(i * 128));
  EXPECT_EQ(anchors.find(200)->position, 128u);
  EXPECT_EQ(anchors.find(200)->image->size_bytes(), 2u);
}

TEST(Anchors, DropOneSparesPinnedOnesAndTheNewest) {
  Anchors anchors;
  EXPECT_FALSE(anchors.drop_one());
  for (size_t p : {128u, 256u, 384u, 512u}) anchors.add(anchor(p));
  anchors.pin(256);
  EXPECT_TRUE(anchors.drop_one());
  EXPECT_TRUE(anchors.drop_one());
  EXPECT_FALSE(anchors.drop_one());
  EXPECT_EQ(positions(anchors, 1000), (std::vector<size_t>{256, 512}));
}

TEST(Anchors, ClearForgetsEverything) {
  Anchors anchors;
  anchors.add(anchor(128));
  anchors.clear();
  EXPECT_EQ(anchors.size(), 0u);
  EXPECT_EQ(anchors.find(128), nullptr);
}

}  // namespace
}  // namespace ds4
