#include <gtest/gtest.h>

#include <vector>

#include "ds4/state.hpp"
#include "model/shape.hpp"

namespace ds4 {
namespace {

StateLayout layout_of(model::Variant variant, bool drafter = false) {
  const model::ModelShape shape = model::known_shape(variant);
  return {shape.ratios, shape.width, shape.vocabulary, drafter};
}

// Parts follow each other without gaps, in the documented order.
void expect_dense(const StateParts& parts) {
  size_t end = 0;
  const auto follows = [&](const StatePart& part) {
    if (part.count == 0) return;
    EXPECT_EQ(part.offset, end);
    EXPECT_EQ(part.row_bytes % 4, 0u);
    end += part.bytes();
  };
  for (const StateLayerParts& layer : parts.layers) {
    for (const StatePart& part : {layer.window, layer.attention, layer.values, layer.scores, layer.index,
                                  layer.index_values, layer.index_scores}) {
      follows(part);
    }
  }
  for (const StatePart& part : {parts.drafter_window, parts.drafter_streams, parts.logits}) follows(part);
  EXPECT_EQ(parts.bytes, end);
}

// 21 layers of 32 attention and 32 index rows, 20 layers of one row: 3,514 bytes a token.
TEST(StateLayout, ABlockOfFlash) {
  const StateLayout layout = layout_of(model::Variant::flash);
  EXPECT_EQ(layout.block_bytes(), 21u * 32 * (584 + 68) + 20u * 584);
  const StateParts parts = layout.block(7);
  expect_dense(parts);
  EXPECT_EQ(parts.position, 1024u);
  EXPECT_FALSE(parts.is_frontier());
  EXPECT_EQ(parts.bytes, layout.block_bytes());
  EXPECT_EQ(parts.layers[0].attention.count, 0u);
  EXPECT_EQ(parts.layers[2].attention.first, 7u * 32);
  EXPECT_EQ(parts.layers[2].index.offset, 32u * 584);
  EXPECT_EQ(parts.layers[3].attention.offset, 32u * (584 + 68));
  EXPECT_EQ(parts.layers[3].attention.first, 7u);
  EXPECT_EQ(parts.layers[3].attention.count, 1u);
}

// Values of 1024 and 512 F32, of index compressors 256, each with its score.
TEST(StateLayout, AFrontierOfFlash) {
  const StateLayout layout = layout_of(model::Variant::flash);
  const size_t logits = 129280 * 4, window = 43 * 584, open4 = 21 * 2 * (1024 + 256) * 4,
               open128 = 20 * 2 * 512 * 4, row4 = 21 * (584 + 68);
  EXPECT_EQ(layout.frontier_bytes(1), window + open4 + open128 + logits);
  EXPECT_EQ(layout.frontier_bytes(3), 3 * (window + open4 + open128) + logits);
  EXPECT_EQ(layout.frontier_bytes(4), 4 * (window + open4 + open128) + row4 + logits);
  EXPECT_EQ(layout.frontier_bytes(5), 5 * (window + open4 + open128) + row4 + logits);
  EXPECT_EQ(layout.frontier_bytes(127), 127 * (window + open128) + 7 * open4 + 31 * row4 + logits);
  EXPECT_EQ(layout.frontier_bytes(128), 128 * window + 4 * open4 + logits);
  EXPECT_EQ(layout.frontier_bytes(129), 128 * window + 5 * open4 + open128 + logits);
  EXPECT_EQ(layout.frontier_bytes(1'000'000), 128 * window + 4 * open4 + 64 * open128 + 16 * row4 + logits);
}

TEST(StateLayout, EveryFrontierIsDenseAndHoldsTheNewestTokens) {
  for (const model::Variant variant : {model::Variant::nano, model::Variant::pro}) {
    for (const bool drafter : {false, true}) {
      const StateLayout layout = layout_of(variant, drafter);
      for (uint64_t position = 1; position < 520; ++position) {
        const StateParts parts = layout.frontier(position);
        expect_dense(parts);
        ASSERT_EQ(parts.bytes, layout.frontier_bytes(position));
        ASSERT_EQ(parts.drafter_streams.count, drafter ? 1u : 0u);
        for (size_t l = 0; l < parts.layers.size(); ++l) {
          const StateLayerParts& layer = parts.layers[l];
          const uint32_t ratio = layout.ratios()[l];
          ASSERT_EQ(layer.window.first + layer.window.count, position);
          if (ratio == 0) continue;
          // Rows of blocks and of the frontier are all that are complete.
          ASSERT_EQ(layer.attention.first, position / 128 * (128 / ratio));
          ASSERT_EQ(layer.attention.first + layer.attention.count, position / ratio);
          ASSERT_EQ(layer.values.first + layer.values.count, position);
          ASSERT_EQ(layer.scores.first, layer.values.first);
          if (ratio != 4) continue;
          ASSERT_EQ(layer.index.count, layer.attention.count);
          ASSERT_EQ(layer.index_values.first, layer.values.first);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ds4
