#include "backend/cpu/sequence_state.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/tiny_model.hpp"

namespace ds4::cpu {
namespace {

TEST(RawWindow, HoldsTheWindowOfEveryRetractableToken) {
  RawWindow window(8);
  for (uint64_t p = 0; p < 300; ++p) std::memcpy(window.slot(p), &p, sizeof(p));
  for (uint64_t p = 300 - 128 - retractable_tokens; p < 300; ++p) {
    uint64_t stored;
    std::memcpy(&stored, window.row(p), sizeof(stored));
    EXPECT_EQ(stored, p);
  }
  EXPECT_EQ(window.row(156), window.row(300));
}

TEST(RawWindow, GrowsWithItsRowsAndKeepsThem) {
  RawWindow window(584);
  EXPECT_EQ(window.memory_bytes(), 0u);
  *window.slot(0) = std::byte{42};
  EXPECT_LT(window.memory_bytes(), 144u * 584u);
  for (uint64_t p = 1; p < 1000; ++p) *window.slot(p % 144 == 0 ? p + 1 : p) = std::byte{1};
  EXPECT_EQ(*window.row(144), std::byte{42});
  EXPECT_GE(window.memory_bytes(), 144u * 584u);
  EXPECT_LT(window.memory_bytes(), 2u * 144u * 584u);
}

TEST(RawWindow, CopiesAreSeparate) {
  RawWindow window(1);
  *window.slot(3) = std::byte{7};
  RawWindow copy = window;
  *copy.slot(3) = std::byte{8};
  EXPECT_EQ(*window.row(3), std::byte{7});
  EXPECT_EQ(*copy.row(3), std::byte{8});
}

TEST(CompressorState, StartsEmpty) {
  struct Shape {
    uint32_t ratio, dim, width, rows;
  };
  for (const Shape& shape : {Shape{4, 512, 1024, 24}, Shape{4, 128, 256, 24}, Shape{128, 512, 512, 144}}) {
    CompressorState state(shape.ratio, shape.dim);
    EXPECT_EQ(state.ratio(), shape.ratio);
    EXPECT_EQ(state.width(), shape.width);
    EXPECT_EQ(state.memory_bytes(), 2u * shape.rows * shape.width * sizeof(float));
    for (int64_t position = -static_cast<int64_t>(shape.ratio); position < 0; ++position) {
      for (size_t i = 0; i < shape.width; ++i) {
        ASSERT_EQ(state.value_row(position)[i], 0.0f);
        ASSERT_EQ(state.score_row(position)[i], -INFINITY);
      }
    }
  }
}

TEST(CompressorState, KeepsBothWindowsOfEveryRetractableToken) {
  CompressorState state(4, 128);
  for (int64_t p = 0; p < 101; ++p) {
    state.value_row(p)[255] = static_cast<float>(p);
    state.score_row(p)[0] = -static_cast<float>(p);
  }
  // Back to position 85, whose window 84..87 is open: 80..84 are needed again.
  for (int64_t p = 80; p < 101; ++p) {
    EXPECT_EQ(state.value_row(p)[255], static_cast<float>(p));
    EXPECT_EQ(state.score_row(p)[0], -static_cast<float>(p));
  }
}

TEST(LayerState, HoldsWhatItsRatioNeeds) {
  const RowCodec codec(true);
  const LayerState plain(0, codec), csa(4, codec), hca(128, codec);
  EXPECT_EQ(plain.memory_bytes(), 0u);
  EXPECT_EQ(csa.compressed.row_bytes(), 584u);
  EXPECT_EQ(csa.index_rows.row_bytes(), 68u);
  EXPECT_EQ(csa.memory_bytes(), (2u * 24 * 1024 + 2u * 24 * 256) * sizeof(float));
  EXPECT_EQ(hca.compressed.row_bytes(), 584u);
  EXPECT_EQ(hca.index_rows.row_bytes(), 0u);
  EXPECT_EQ(hca.memory_bytes(), 2u * 144 * 512 * sizeof(float));
}

// A compressed row costs its packed size: 3,514 bytes a token for Flash in a long sequence.
TEST(SequenceState, GrowthPerToken) {
  const model::ModelShape shape = model::known_shape(model::Variant::flash);
  const RowCodec codec(true);
  double bytes = 0;
  for (uint32_t ratio : shape.ratios) {
    const LayerState layer(ratio, codec);
    if (ratio != 0) bytes += static_cast<double>(layer.compressed.row_bytes()) / ratio;
    if (ratio == 4) bytes += static_cast<double>(layer.index_rows.row_bytes()) / ratio;
  }
  EXPECT_NEAR(bytes, 3514, 1);
}

TEST(SequenceState, CopiesAreCheckpoints) {
  const model::ModelShape shape = testing::tiny_shape();
  const RowCodec codec(true);
  SequenceState state(shape, codec, true);
  ASSERT_EQ(state.layers.size(), shape.layers);
  ASSERT_TRUE(state.drafter);
  EXPECT_FALSE(SequenceState(shape, codec, false).drafter);

  size_t csa = 0;
  while (shape.ratios[csa] != 4) ++csa;
  const std::vector<std::byte> old_row(584, std::byte{1}), new_row(584, std::byte{2});
  LayerState& layer = state.layers[csa];
  layer.compressed.append(old_row.data());
  *layer.window.slot(0) = std::byte{3};
  layer.compressor.value_row(0)[0] = 4;
  state.drafter->keep_streams(5, std::vector<float>(4, 5.0f));
  state.position = 6;

  const SequenceState checkpoint = state;
  layer.compressed.append(new_row.data());
  *layer.window.slot(0) = std::byte{30};
  layer.compressor.value_row(0)[0] = 40;
  state.drafter->keep_streams(5, std::vector<float>(4, 50.0f));
  state.position = 60;

  LayerState kept = checkpoint.layers[csa];
  EXPECT_EQ(kept.compressed.size(), 1u);
  EXPECT_EQ(*kept.compressed[0], std::byte{1});
  EXPECT_EQ(*kept.window.row(0), std::byte{3});
  EXPECT_EQ(kept.compressor.value_row(0)[0], 4);
  EXPECT_EQ(checkpoint.drafter->streams(5)[0], 5.0f);
  EXPECT_EQ(checkpoint.position, 6u);
}

TEST(SequenceState, RetractsWhatTheRingsStillHold) {
  SequenceState state(testing::tiny_shape(), RowCodec(true), false);
  const std::vector<std::byte> row(584);
  LayerState* csa = nullptr;
  for (LayerState& layer : state.layers) csa = layer.compressor.ratio() == 4 ? &layer : csa;
  ASSERT_NE(csa, nullptr);
  for (int i = 0; i < 25; ++i) csa->compressed.append(row.data());
  state.advance(100);
  EXPECT_FALSE(state.retract(101));
  EXPECT_FALSE(state.retract(17));
  EXPECT_EQ(state.position, 100u);
  EXPECT_TRUE(state.retract(9));
  EXPECT_EQ(state.position, 91u);
  EXPECT_EQ(csa->compressed.size(), 22u);
  EXPECT_FALSE(state.retract(8));  // 17 from the furthest
  EXPECT_TRUE(state.retract(7));
  state.advance(99);
  EXPECT_FALSE(state.retract(16));  // what the 100th token overwrote is still missing
  state.advance(101);
  EXPECT_TRUE(state.retract(16));
}

TEST(SequenceState, MemoryCountsEveryLayer) {
  const model::ModelShape shape = testing::tiny_shape();
  const RowCodec codec(true);
  SequenceState state(shape, codec, true);
  const size_t before = state.memory_bytes();
  size_t expected = 0;
  for (const LayerState& layer : state.layers) expected += layer.memory_bytes();
  EXPECT_EQ(before, expected);
  const std::vector<std::byte> row(584, std::byte{0});
  state.layers.back().compressed.append(row.data());
  EXPECT_EQ(state.memory_bytes(), before + 64 * 584);
  state.drafter->keep_streams(0, std::vector<float>(1024, 0.0f));
  EXPECT_EQ(state.memory_bytes(), before + 64 * 584 + 17 * 1024 * sizeof(float));
}

}  // namespace
}  // namespace ds4::cpu
