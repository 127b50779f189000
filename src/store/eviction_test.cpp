#include "store/eviction.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace ds4::store {
namespace {

Hash128 key(int id) {
  return hash_of(std::as_bytes(std::span(&id, 1)));
}

SegmentRow segment(int64_t id, int64_t parent, uint64_t bytes = 100) {
  SegmentRow row;
  row.id = id;
  row.parent = parent;
  row.file_bytes = bytes;
  return row;
}

FrontierRow frontier(int id, int64_t segment_id, int64_t parent, uint64_t position, uint64_t bytes = 50) {
  FrontierRow row;
  row.id = id;
  row.key = key(id);
  row.segment = segment_id;
  row.parent = parent;
  row.position = position;
  row.file_bytes = bytes;
  return row;
}

std::vector<int64_t> ids(const auto& rows) {
  std::vector<int64_t> all;
  for (const auto& row : rows) all.push_back(row.id);
  return all;
}

TEST(Eviction, ScoreGrowsWithHitsAndDecaysWithAge) {
  EXPECT_GT(eviction_score(3, 0, 0, 100, 10), eviction_score(2, 0, 0, 100, 10));
  EXPECT_GT(eviction_score(3, 1000, 1000, 100, 10), eviction_score(3, 0, 1000, 100, 10));
  EXPECT_DOUBLE_EQ(decayed_hits(8, 0, 21600), 4);
  EXPECT_DOUBLE_EQ(decayed_hits(8, 0, -5), 8);
  EXPECT_EQ(decayed_hits(0.02, 0, 43200), 0);
  EXPECT_EQ(eviction_score(1, 0, 0, 10, 0), 0);
}

// Segment 1 is shared by two texts, which go on in 2 and 3.
EvictionInput two_branches() {
  EvictionInput input;
  input.segments = {segment(1, 0), segment(2, 1), segment(3, 1)};
  input.frontiers = {frontier(10, 1, 0, 8, 500), frontier(20, 2, 10, 16), frontier(30, 3, 10, 16)};
  return input;
}

TEST(Eviction, TailsGoBeforeWhereTheyBranch) {
  EvictionInput input = two_branches();
  input.frontiers[1].hits = 5;
  input.bytes_to_free = 1;
  const EvictionPlan plan = plan_eviction(input);
  EXPECT_EQ(ids(plan.frontiers), std::vector<int64_t>{30});
  EXPECT_EQ(ids(plan.segments), std::vector<int64_t>{3});
  EXPECT_EQ(plan.freed_bytes, 150u);
}

TEST(Eviction, EverythingGoesFromTheLeavesUp) {
  EvictionInput input = two_branches();
  input.bytes_to_free = 100000;
  const EvictionPlan plan = plan_eviction(input);
  EXPECT_EQ(plan.frontiers.size(), 3u);
  EXPECT_EQ(plan.segments.size(), 3u);
  EXPECT_EQ(plan.segments.back().id, 1);
  EXPECT_EQ(plan.freed_bytes, 900u);
}

TEST(Eviction, WhatIsProtectedPinnedOrHeldStays) {
  EvictionInput input = two_branches();
  input.bytes_to_free = 100000;
  input.protected_keys = {key(20)};
  input.frontiers[2].pinned = true;
  EvictionPlan plan = plan_eviction(input);
  EXPECT_EQ(ids(plan.frontiers), std::vector<int64_t>{10});
  EXPECT_TRUE(plan.segments.empty()) << "both texts need the first segment";

  input = two_branches();
  input.bytes_to_free = 100000;
  input.held_segment = 3;
  plan = plan_eviction(input);
  EXPECT_EQ(ids(plan.segments), std::vector<int64_t>{2});
}

TEST(Eviction, BeginningsOfConversationsStayForADay) {
  EvictionInput input;
  input.frontiers = {frontier(1, 0, 0, 10, 1000), frontier(2, 0, 0, 1000)};
  input.frontiers[0].anchor = true;
  input.bytes_to_free = 1;
  input.now = 3600;
  EXPECT_EQ(plan_eviction(input).frontiers.front().id, 2);
  input.now = 5 * 21600;
  EXPECT_EQ(plan_eviction(input).frontiers.front().id, 1);
}

TEST(Eviction, RowsThatMakeACircleDoNoHarm) {
  EvictionInput input;
  input.segments = {segment(1, 2), segment(2, 1), segment(3, 3)};
  input.frontiers = {frontier(1, 1, 2, 8), frontier(2, 3, 1, 9), frontier(3, 77, 3, 9)};
  input.bytes_to_free = 100000;
  EXPECT_EQ(plan_eviction(input).frontiers.size(), 3u);
}

TEST(Eviction, SegmentsWithoutFrontiersAreNotNeeded) {
  const std::vector<SegmentRow> segments{segment(1, 0), segment(2, 1), segment(3, 2), segment(4, 1)};
  const std::vector<FrontierRow> frontiers{frontier(1, 4, 0, 8)};
  EXPECT_EQ(ids(unneeded_segments(frontiers, segments)), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(ids(unneeded_segments(frontiers, segments, 2)), std::vector<int64_t>{3});
}

TEST(Eviction, ThinningKeepsTheNewestAndGrowingGaps) {
  std::vector<uint64_t> positions;
  for (uint64_t turn = 1; turn <= 200; ++turn) {
    positions.push_back(turn * 500);
    std::vector<size_t> gone = plan_thinning(positions);
    std::sort(gone.rbegin(), gone.rend());
    for (const size_t i : gone) positions.erase(positions.begin() + static_cast<ptrdiff_t>(i));
    ASSERT_EQ(positions.back(), turn * 500);
    ASSERT_LE(positions.size(), most_unshared_frontiers);
  }
  ASSERT_EQ(positions.size(), most_unshared_frontiers);
  // A state is kept within the last few turns, and one in the first half.
  EXPECT_GE(positions[6], 100000u - 4 * 500);
  EXPECT_LE(positions[0], 50000u);
  for (size_t i = 2; i < positions.size(); ++i) {
    EXPECT_LE(positions[i] - positions[i - 1], 2 * (positions[i - 1] - positions[i - 2]) + 500) << i;
  }
  EXPECT_TRUE(plan_thinning({}).empty());
  EXPECT_TRUE(plan_thinning(std::vector<uint64_t>{1, 2, 3}).empty());
}

}  // namespace
}  // namespace ds4::store
