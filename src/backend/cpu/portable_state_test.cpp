#include "backend/cpu/portable_state.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4::cpu {
namespace {

using testing::LoadedModel;
using testing::must;

class PortableStateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { must(testing::write_tiny_model(path(), {})); }
  static void TearDownTestSuite() { std::filesystem::remove(path()); }
  // Tests run side by side.
  static std::string path() {
    return ::testing::TempDir() + "portable_state_" + std::to_string(::getpid()) + ".gguf";
  }

  static std::vector<Token> tokens(size_t count) {
    std::vector<Token> result(count);
    for (size_t i = 0; i < count; ++i) result[i] = static_cast<Token>((i * 37 + i / 7) % 512);
    return result;
  }
  static StateLayout layout_of(const LoadedModel& model) {
    return {model.shape.ratios, model.shape.width, model.shape.vocabulary, false};
  }
  static std::vector<std::byte> exported(const LoadedModel& model, const backend::StateImage& image,
                                         const StateParts& parts) {
    std::vector<std::byte> bytes(parts.bytes);
    must(model.backend->export_state(image, parts, bytes));
    return bytes;
  }
};

TEST_F(PortableStateTest, BlocksComeInOrderBeforeTheFrontier) {
  const LoadedModel model(path());
  const StateLayout layout = layout_of(model);
  auto source = model.sequence(), target = model.sequence();
  model.prefill(*source, tokens(300));
  const auto image = must(model.backend->snapshot(*source));
  const auto add = [&](const StateParts& parts, std::span<const std::byte> bytes) {
    return model.backend->import_state(*target, parts, bytes);
  };
  const auto first = exported(model, *image, layout.block(0)),
             second = exported(model, *image, layout.block(1)),
             frontier = exported(model, *image, layout.frontier(300));
  const auto refused = [&](const Result<void>& done) {
    return !done && done.error().code == ErrorCode::invalid_argument && target->position() == 0;
  };
  EXPECT_TRUE(refused(add(layout.block(1), second)));
  EXPECT_TRUE(refused(add(layout.frontier(300), frontier)));
  EXPECT_TRUE(refused(add(layout.block(0), std::span(first).first(100))));
  must(add(layout.block(0), first));
  EXPECT_TRUE(refused(add(layout.block(0), first)));
  must(add(layout.block(1), second));
  must(add(layout.frontier(300), frontier));
  EXPECT_EQ(target->position(), 300u);
  EXPECT_FALSE(add(layout.block(2), first));
  EXPECT_EQ(model.decode(*target, 3), model.decode(*source, 3));

  std::vector<std::byte> room(layout.block_bytes());
  EXPECT_FALSE(model.backend->export_state(*image, layout.block(2), room));
  room.resize(layout.frontier_bytes(299));
  EXPECT_FALSE(model.backend->export_state(*image, layout.frontier(299), room));
}

// A sequence that was left half imported computes as an empty one.
TEST_F(PortableStateTest, AnAbandonedImportLeavesNothing) {
  const LoadedModel model(path());
  auto source = model.sequence(), target = model.sequence();
  const auto logits = model.prefill(*source, tokens(200));
  const auto image = must(model.backend->snapshot(*source));
  const StateParts block = layout_of(model).block(0);
  must(model.backend->import_state(*target, block, exported(model, *image, block)));
  EXPECT_EQ(model.prefill(*target, tokens(200)), logits);
}

// Up to 16 tokens can be taken back, but none of those that were imported.
TEST_F(PortableStateTest, OnlyWhatFollowsAnImportCanBeTakenBack) {
  const LoadedModel model(path());
  for (const size_t length : {1ul, 4ul, 6ul, 100ul}) {
    auto source = model.sequence(), target = model.sequence();
    model.prefill(*source, tokens(length));
    const auto image = must(model.backend->snapshot(*source));
    const StateParts frontier = layout_of(model).frontier(length);
    must(model.backend->import_state(*target, frontier, exported(model, *image, frontier)));
    EXPECT_FALSE(model.backend->retract(*target, 1)) << length;
    must(model.backend->verify(*target, tokens(16)));
    EXPECT_FALSE(model.backend->retract(*target, 17)) << length;
    must(model.backend->retract(*target, 16));
    EXPECT_EQ(target->position(), length);
    EXPECT_EQ(model.decode(*target, 3), model.decode(*source, 3)) << length;
  }
}

TEST_F(PortableStateTest, UnpackedRowsHaveNone) {
  CpuOptions options;
  options.round_trips = false;
  const LoadedModel model(path(), "", options);
  auto source = model.sequence(), target = model.sequence();
  model.prefill(*source, tokens(5));
  const auto image = must(model.backend->snapshot(*source));
  const StateParts frontier = layout_of(model).frontier(5);
  std::vector<std::byte> bytes(frontier.bytes);
  EXPECT_EQ(model.backend->export_state(*image, frontier, bytes).error().code, ErrorCode::unsupported);
  EXPECT_EQ(model.backend->import_state(*target, frontier, bytes).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace ds4::cpu
