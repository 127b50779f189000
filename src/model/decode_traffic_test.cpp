#include "model/decode_traffic.hpp"

#include <gtest/gtest.h>

#include "model/tensor_list.hpp"

namespace ds4::model {
namespace {

using format::TensorType;

/// The usual number format of a role in the published 2-bit files.
TensorType published_type(TensorRole role) {
  switch (role) {
    case TensorRole::output:
    case TensorRole::projection:
    case TensorRole::shared_expert:
      return TensorType::q8_0;
    case TensorRole::gate_up_expert:
      return TensorType::iq2_xxs;
    case TensorRole::down_expert:
      return TensorType::q2_k;
    case TensorRole::embedding:
    case TensorRole::small_matrix:
    case TensorRole::mixer:
      return TensorType::f16;
    case TensorRole::table:
      return TensorType::i32;
    case TensorRole::vector:
      break;
  }
  return TensorType::f32;
}

ModelWeights published_weights(const ModelShape& shape) {
  ModelWeights weights;
  for (const TensorSlot& slot : list_model_tensors(shape, weights)) {
    slot.tensor->type = published_type(slot.role);
    slot.tensor->n_dims = static_cast<uint32_t>(slot.dims.size());
    std::copy(slot.dims.begin(), slot.dims.end(), slot.tensor->dims.begin());
    slot.tensor->size_bytes = format::row_bytes(slot.tensor->type, slot.tensor->elements());
  }
  return weights;
}

class FlashTraffic : public testing::Test {
 protected:
  const ModelShape shape = known_shape(Variant::flash);
  const ModelWeights weights = published_weights(shape);
  const DecodeTraffic traffic{shape, weights};
};

// docs/performance.md: 9.2 GB without the indexer's queries, about 9.5 with them, out of 87 GB.
TEST_F(FlashTraffic, ReadsTheActiveWeights) {
  EXPECT_NEAR(static_cast<double>(traffic.weight_bytes(100)), 9.2e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(traffic.weight_bytes(100000)), 9.56e9, 0.05e9);
  const LayerWeights& indexed = weights.layers[2];
  EXPECT_EQ(traffic.weight_bytes(100000) - traffic.weight_bytes(100),
            21 * (indexed.index_q_b.size_bytes + indexed.index_proj.size_bytes));
}

TEST_F(FlashTraffic, TheIndexerChoosesFromTheFirstRowItCannotTake) {
  // 512 rows of 4 tokens: the 2,052nd token sees 513.
  EXPECT_EQ(traffic.weight_bytes(2050), traffic.weight_bytes(0));
  EXPECT_GT(traffic.weight_bytes(2051), traffic.weight_bytes(2050));
}

TEST_F(FlashTraffic, ReadsTheRowsThatAreSeen) {
  EXPECT_EQ(traffic.state_bytes(0), 43u * 584);  // its own row in every layer
  EXPECT_EQ(traffic.state_bytes(7), (43u * 8 + 21 * 2) * 584);
  EXPECT_EQ(traffic.state_bytes(2047), (43u * 128 + 21 * 512 + 20 * 16) * 584);
  EXPECT_EQ(traffic.state_bytes(65535), (43u * 128 + 21 * 512 + 20 * 512) * 584 + uint64_t{21} * 16384 * 68);
}

TEST(DecodeTraffic, CountsOnlyTheExpertsOfAToken) {
  ModelShape shape = known_shape(Variant::nano);
  ModelWeights weights = published_weights(shape);
  const uint64_t before = DecodeTraffic(shape, weights).weight_bytes(0);
  weights.layers[0].up_experts.size_bytes += 1000 * shape.experts;
  weights.token_embedding.size_bytes += 10 * weights.token_embedding.dims[1];
  EXPECT_EQ(DecodeTraffic(shape, weights).weight_bytes(0), before + 1000 * shape.experts_used + 10);
}

}  // namespace
}  // namespace ds4::model
