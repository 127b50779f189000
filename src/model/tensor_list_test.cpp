#include "model/tensor_list.hpp"

#include <gtest/gtest.h>

#include <map>

namespace ds4::model {
namespace {

using Dims = std::vector<uint64_t>;

std::map<std::string, TensorSlot> by_name(std::vector<TensorSlot> slots) {
  std::map<std::string, TensorSlot> map;
  for (TensorSlot& slot : slots) map.emplace(slot.name, slot);
  EXPECT_EQ(map.size(), slots.size()) << "a name occurs twice";
  return map;
}

void expect_dims(const std::map<std::string, TensorSlot>& slots, const std::string& prefix,
                 const std::map<std::string, Dims>& expected) {
  size_t found = 0;
  for (const auto& [name, slot] : slots) found += name.starts_with(prefix) ? 1 : 0;
  EXPECT_EQ(found, expected.size()) << prefix;
  for (const auto& [name, dims] : expected) {
    const auto slot = slots.find(prefix + name);
    ASSERT_NE(slot, slots.end()) << prefix + name;
    EXPECT_EQ(slot->second.dims, dims) << prefix + name;
  }
}

// The dims of published Flash files, written out (docs/formats.md).
const std::map<std::string, Dims> flash_window_layer = {
    {"hc_attn_fn.weight", {16384, 24}},
    {"hc_attn_scale.weight", {3}},
    {"hc_attn_base.weight", {24}},
    {"attn_norm.weight", {4096}},
    {"attn_q_a.weight", {4096, 1024}},
    {"attn_q_a_norm.weight", {1024}},
    {"attn_q_b.weight", {1024, 32768}},
    {"attn_kv.weight", {4096, 512}},
    {"attn_kv_a_norm.weight", {512}},
    {"attn_sinks.weight", {64}},
    {"attn_output_a.weight", {4096, 8192}},
    {"attn_output_b.weight", {8192, 4096}},
    {"hc_ffn_fn.weight", {16384, 24}},
    {"hc_ffn_scale.weight", {3}},
    {"hc_ffn_base.weight", {24}},
    {"ffn_norm.weight", {4096}},
    {"ffn_gate_inp.weight", {4096, 256}},
    {"ffn_gate_exps.weight", {4096, 2048, 256}},
    {"ffn_up_exps.weight", {4096, 2048, 256}},
    {"ffn_down_exps.weight", {2048, 4096, 256}},
    {"ffn_gate_shexp.weight", {4096, 2048}},
    {"ffn_up_shexp.weight", {4096, 2048}},
    {"ffn_down_shexp.weight", {2048, 4096}},
};

std::map<std::string, Dims> with(std::map<std::string, Dims> base, const std::map<std::string, Dims>& more) {
  base.insert(more.begin(), more.end());
  return base;
}

TEST(TensorList, FlashHasThePublishedNamesAndDims) {
  ModelWeights weights;
  const auto slots = by_name(list_model_tensors(known_shape(Variant::flash), weights));
  EXPECT_EQ(slots.size(), 1328u);
  EXPECT_EQ(slots.at("token_embd.weight").dims, (Dims{4096, 129280}));
  EXPECT_EQ(slots.at("output.weight").dims, (Dims{4096, 129280}));
  EXPECT_EQ(slots.at("output_norm.weight").dims, (Dims{4096}));
  EXPECT_EQ(slots.at("output_hc_fn.weight").dims, (Dims{16384, 4}));
  EXPECT_EQ(slots.at("output_hc_base.weight").dims, (Dims{4}));
  EXPECT_EQ(slots.at("output_hc_scale.weight").dims, (Dims{1}));
  const std::map<std::string, Dims> table = {{"ffn_gate_tid2eid.weight", {6, 129280}}};
  const std::map<std::string, Dims> bias = {{"exp_probs_b.bias", {256}}};
  const std::map<std::string, Dims> heavy = {{"attn_compressor_ape.weight", {512, 128}},
                                             {"attn_compressor_kv.weight", {4096, 512}},
                                             {"attn_compressor_gate.weight", {4096, 512}},
                                             {"attn_compressor_norm.weight", {512}}};
  const std::map<std::string, Dims> sparse = {
      {"attn_compressor_ape.weight", {1024, 4}},       {"attn_compressor_kv.weight", {4096, 1024}},
      {"attn_compressor_gate.weight", {4096, 1024}},   {"attn_compressor_norm.weight", {512}},
      {"indexer.attn_q_b.weight", {1024, 8192}},       {"indexer.proj.weight", {4096, 64}},
      {"indexer_compressor_ape.weight", {256, 4}},     {"indexer_compressor_kv.weight", {4096, 256}},
      {"indexer_compressor_gate.weight", {4096, 256}}, {"indexer_compressor_norm.weight", {128}}};
  expect_dims(slots, "blk.1.", with(flash_window_layer, table));
  expect_dims(slots, "blk.2.", with(with(flash_window_layer, table), sparse));
  expect_dims(slots, "blk.3.", with(with(flash_window_layer, bias), heavy));
  expect_dims(slots, "blk.42.", with(with(flash_window_layer, bias), sparse));
}

TEST(TensorList, ProHasThePublishedDims) {
  ModelWeights weights;
  const auto slots = by_name(list_model_tensors(known_shape(Variant::pro), weights));
  EXPECT_EQ(slots.size(), 1894u);
  EXPECT_EQ(slots.at("blk.0.attn_compressor_kv.weight").dims, (Dims{7168, 512}));
  EXPECT_EQ(slots.at("blk.60.attn_q_b.weight").dims, (Dims{1536, 65536}));
  EXPECT_EQ(slots.at("blk.60.attn_output_a.weight").dims, (Dims{4096, 16384}));
  EXPECT_EQ(slots.at("blk.60.attn_output_b.weight").dims, (Dims{16384, 7168}));
  EXPECT_EQ(slots.at("blk.60.indexer.attn_q_b.weight").dims, (Dims{1536, 8192}));
  EXPECT_EQ(slots.at("blk.60.ffn_down_exps.weight").dims, (Dims{3072, 7168, 384}));
}

TEST(TensorList, TheMtpBlockIsAWindowLayerWithItsOwnHead) {
  MtpWeights weights;
  const auto slots = by_name(list_mtp_tensors(known_shape(Variant::flash), weights));
  expect_dims(slots, "mtp.0.",
              with(flash_window_layer, {{"exp_probs_b.bias", {256}},
                                        {"hc_head_fn.weight", {16384, 4}},
                                        {"hc_head_base.weight", {4}},
                                        {"hc_head_scale.weight", {1}},
                                        {"e_proj.weight", {4096, 4096}},
                                        {"h_proj.weight", {4096, 4096}},
                                        {"enorm.weight", {4096}},
                                        {"hnorm.weight", {4096}},
                                        {"norm.weight", {4096}}}));
}

TEST(TensorList, SlotsPointToDifferentMembers) {
  ModelWeights weights;
  std::map<Tensor*, std::string> owners;
  for (const TensorSlot& slot : list_model_tensors(known_shape(Variant::nano), weights)) {
    const auto [owner, fresh] = owners.emplace(slot.tensor, slot.name);
    EXPECT_TRUE(fresh) << slot.name << " and " << owner->second;
  }
}

}  // namespace
}  // namespace ds4::model
