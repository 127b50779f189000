#include "engine/draft_depth.hpp"

#include <gtest/gtest.h>

#include <set>

namespace ds4 {
namespace {

// A device on which a plain step takes 1, a draft `draft` and checking r rows 1 + row (r - 1); a drafter that
// is right with a probability that repeats in a fixed pattern.
struct World {
  double draft = 0.05, row = 0.1;
  int right_of_ten = 8;

  double first_time = 0;      // what a number of rows costs more when it is checked for the first time
  size_t hiccup_at_step = 0;  // a plain step that takes 100; 0: none
  std::set<size_t> known_rows;

  size_t steps = 0, tokens = 0, deepest = 0, draft_steps = 0;
  double seconds = 0;
  unsigned seed = 1;

  bool next_is_right() {
    seed = seed * 1103515245 + 12345;
    return static_cast<int>((seed >> 16) % 10) < right_of_ten;
  }
  void step(DraftDepth& depth) {
    const size_t drafts = depth.choose();
    ++steps;
    deepest = std::max(deepest, drafts);
    if (drafts == 0) {
      const double plain = steps == hiccup_at_step ? 100 : 1;
      seconds += plain;
      ++tokens;
      depth.observe_plain(plain);
      return;
    }
    ++draft_steps;
    size_t accepted = 0;
    while (accepted < drafts && next_is_right()) ++accepted;
    const double drafting = draft * static_cast<double>(drafts),
                 checking = 1 + row * static_cast<double>(drafts) +
                            (known_rows.insert(drafts).second ? first_time : 0);
    depth.observe(drafts, accepted, drafting, checking);
    seconds += drafting + checking;
    tokens += 1 + accepted;
  }
};

SpeculationOptions options(size_t depth, bool adaptive = true) {
  SpeculationOptions o;
  o.depth = depth;
  o.adaptive = adaptive;
  return o;
}

TEST(DraftDepth, OffAndForced) {
  DraftDepth off(options(0)), forced(options(3, false)), deep(options(99, false));
  EXPECT_EQ(off.choose(), 0u);
  EXPECT_EQ(forced.choose(), 3u);
  EXPECT_EQ(deep.choose(), max_draft_depth);
}

TEST(DraftDepth, UsesDraftsThatPay) {
  DraftDepth depth(options(4));
  World world;
  while (world.tokens < 500) world.step(depth);
  EXPECT_GT(static_cast<double>(world.tokens) / world.seconds, 1.9);  // the best fixed depth gives about 2.1
  EXPECT_EQ(world.deepest, 4u);
}

TEST(DraftDepth, AnAlwaysWrongDrafterCostsLittle) {
  DraftDepth depth(options(4));
  World world;
  world.right_of_ten = 0;
  world.row = 0.5;
  while (world.tokens < 100) world.step(depth);
  const double before = world.seconds;
  while (world.tokens < 1100) world.step(depth);
  EXPECT_LT(world.seconds - before, 1000 * 1.02);
  EXPECT_LT(before, 120);
}

// A GPU prepares a graph for every number of rows when it first meets it.
TEST(DraftDepth, WhatIsPaidOnceDoesNotCount) {
  DraftDepth depth(options(4));
  World world;
  world.first_time = 20;
  while (world.tokens < 100) world.step(depth);
  const double before = world.seconds;
  const size_t tokens = world.tokens;
  while (world.tokens < 600) world.step(depth);
  EXPECT_GT(static_cast<double>(world.tokens - tokens) / (world.seconds - before), 1.9);
}

TEST(DraftDepth, ADisturbedMeasurementDoesNotMakeWrongDraftsPay) {
  for (const size_t step : {1u, 2u, 3u, 4u, 30u}) {
    DraftDepth depth(options(4));
    World world;
    world.right_of_ten = 0;
    world.row = 0.5;
    world.hiccup_at_step = step;
    while (world.tokens < 100) world.step(depth);
    const double before = world.seconds;
    while (world.tokens < 1100) world.step(depth);
    EXPECT_LT(world.seconds - before, 1000 * 1.02) << "hiccup at step " << step;
  }
}

TEST(DraftDepth, ComesBackWhenDraftsBecomeRight) {
  DraftDepth depth(options(2));
  World world;
  world.right_of_ten = 0;
  while (world.tokens < 300) world.step(depth);
  world.right_of_ten = 10;
  const size_t tries = world.draft_steps;
  while (world.tokens < 2000) world.step(depth);
  EXPECT_GT(world.draft_steps - tries, 300u);
}

TEST(DraftDepth, DearChecksAreNotWorthIt) {
  DraftDepth depth(options(4));
  World world;
  world.row = 1.2;  // checking two rows takes longer than two steps
  while (world.tokens < 1000) world.step(depth);
  EXPECT_LT(world.seconds, 1000 * 1.05);
}

}  // namespace
}  // namespace ds4
