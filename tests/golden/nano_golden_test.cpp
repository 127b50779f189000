// The nano model against an independent implementation (tests/data/README.md): logits, greedy text, cached
// rows, index selection, drafts. The model files are conversions of the checkpoint made by the real
// ds4-quantize.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/forward.hpp"
#include "support/loaded_model.hpp"
#include "support/nano_goldens.hpp"

namespace ds4 {
namespace {

using test::nano_goldens;
using test::NanoGolden;

constexpr size_t layers = 6;

// Remembers what a pass computed for its last row.
class Recorder : public cpu::ForwardObserver {
 public:
  void on_streams(size_t layer, std::span<const float> streams) override {
    if (layer < layers) last_streams[layer].assign(streams.end() - 4 * width, streams.end());
  }
  void on_experts(size_t layer, size_t, std::span<const uint32_t> experts) override {
    last_experts[layer].assign(experts.begin(), experts.end());
  }
  void on_index_rows(size_t layer, size_t, std::span<const uint32_t> selected,
                     std::span<const float> scores) override {
    last_selected[layer].assign(selected.begin(), selected.end());
    last_scores[layer].assign(scores.begin(), scores.end());
  }

  static constexpr ptrdiff_t width = 256;
  std::map<size_t, std::vector<float>> last_streams, last_scores;
  std::map<size_t, std::vector<uint32_t>> last_experts, last_selected;
};

class NanoModel : public testing::LoadedModel {
 public:
  NanoModel(const std::string& path, const std::string& mtp_path, bool round_trips,
            std::unique_ptr<Recorder> seen = std::make_unique<Recorder>())
      : LoadedModel(path, mtp_path, options(round_trips, seen.get())), recorder(std::move(seen)) {}

  std::unique_ptr<Recorder> recorder;

 private:
  static cpu::CpuOptions options(bool round_trips, Recorder* recorder) {
    cpu::CpuOptions result;
    result.round_trips = round_trips;
    result.observer = recorder;
    return result;
  }
};

std::vector<float> logprobs(const float* logits, size_t n) {
  const double max = *std::max_element(logits, logits + n);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += std::exp(logits[i] - max);
  std::vector<float> result(n);
  for (size_t i = 0; i < n; ++i) result[i] = static_cast<float>(logits[i] - max - std::log(sum));
  return result;
}

Token best(const float* logits, size_t n) {
  return static_cast<Token>(std::max_element(logits, logits + n) - logits);
}

struct Distance {
  double max_abs = 0;
  double relative_l2 = 0;
};
Distance distance(const std::vector<float>& a, const std::vector<float>& b) {
  Distance result;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    result.max_abs = std::max(result.max_abs, std::fabs(static_cast<double>(a[i]) - b[i]));
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  result.relative_l2 = std::sqrt(difference / norm);
  return result;
}

// What the two modes have to meet.
struct Bounds {
  double max_abs = 0;
  double relative_l2 = 0;
  double decided_margin = 0;  // ids must be equal where the golden's own top-2 margin is larger
};
constexpr Bounds plain_bounds{2e-3, 1e-4, 0.0};
constexpr Bounds rounded_bounds{0.3, 2e-2, 0.5};

// Agreement over all listed positions of all prompts.
struct Agreement {
  size_t equal = 0, listed = 0, decided_different = 0;
};

class NanoGoldenTest : public ::testing::Test {
 protected:
  // Prefill of a prompt; logits of the last 16 positions.
  struct Pass {
    std::unique_ptr<backend::Sequence> sequence;
    std::vector<float> logits;
    size_t rows = 0;
  };
  static Pass prefill(NanoModel& nano, const std::vector<Token>& ids) {
    Pass pass;
    pass.sequence = nano.sequence();
    pass.rows = std::min<size_t>(16, ids.size());
    pass.logits = nano.prefill(*pass.sequence, ids, pass.rows);
    return pass;
  }

  static void check_positions(const NanoGolden& golden, const Pass& pass, size_t vocabulary, double margin,
                              Agreement& agreement) {
    const auto ids = golden.ints("top20_ids");
    const auto scores = golden.floats("top20_logprobs");
    for (size_t row = 0; row < pass.rows; ++row) {
      const bool equal = best(pass.logits.data() + row * vocabulary, vocabulary) == ids[row * 20];
      ++agreement.listed;
      agreement.equal += equal;
      const bool decided = scores[row * 20] - scores[row * 20 + 1] > margin;
      agreement.decided_different += decided && !equal;
      EXPECT_TRUE(equal || !decided) << golden.id() << ", row " << row << " of the last " << pass.rows;
    }
  }

  // Greedy continuation. Once the two have parted at an undecided position they tell nothing more.
  static void check_greedy(NanoModel& nano, const NanoGolden& golden, Pass& pass, double margin) {
    const size_t vocabulary = nano.shape.vocabulary;
    std::vector<float> logits(pass.logits.end() - static_cast<ptrdiff_t>(vocabulary), pass.logits.end());
    size_t step = 0;
    for (Token expected : golden.greedy()) {
      const Token token = best(logits.data(), vocabulary);
      if (token != expected) {
        const auto scores = logprobs(logits.data(), vocabulary);
        const double gap =
            std::fabs(scores[static_cast<size_t>(token)] - scores[static_cast<size_t>(expected)]);
        EXPECT_LE(gap, margin) << golden.id() << ", greedy step " << step << ": " << token << " for "
                               << expected;
        return;
      }
      logits = nano.decode(*pass.sequence, token);
      ++step;
    }
  }

  static void check_index_rows(const NanoModel& nano, const NanoGolden& golden) {
    for (const auto& [key, value] : golden.values().at("index").as_object()) {
      if (value.at("gap").is_null()) continue;
      const size_t layer = std::stoul(std::string(key));
      const auto expected = NanoGolden::tokens(value.at("rows"));
      const auto& selected = nano.recorder->last_selected.at(layer);
      ASSERT_EQ(selected.size(), expected.size());
      std::vector<uint32_t> both;
      std::vector<uint32_t> wanted(expected.begin(), expected.end());
      std::set_intersection(selected.begin(), selected.end(), wanted.begin(), wanted.end(),
                            std::back_inserter(both));
      const size_t may_differ = value.at("gap").to_number<double>() > 0.01 ? 0 : 2;
      EXPECT_GE(both.size() + may_differ, expected.size()) << golden.id() << ", layer " << layer;
    }
  }

  static void check_experts(const NanoModel& nano, const NanoGolden& golden) {
    for (const auto& [key, value] : golden.values().at("routes").as_object()) {
      auto expected = NanoGolden::tokens(value);
      std::sort(expected.begin(), expected.end());
      const auto& experts = nano.recorder->last_experts.at(std::stoul(std::string(key)));
      EXPECT_TRUE(std::equal(experts.begin(), experts.end(), expected.begin(), expected.end()))
          << golden.id() << ", layer " << std::string(key);
    }
  }

  static void check_drafts(NanoModel& nano, const NanoGolden& golden, Pass& pass, double bound) {
    const auto& expected = golden.values().at("mtp");
    const auto drafts = nano.backend->draft(
        *pass.sequence, {.next = expected.at("next").to_number<Token>(), .depth = 2, .logits = true});
    ASSERT_TRUE(drafts) << drafts.error().message;
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = "draft" + std::to_string(i + 1);
      const auto ids = NanoGolden::tokens(expected.at(name + "_ids"));
      const auto& scores = expected.at(name + "_logprobs").as_array();
      const auto ours = logprobs((*drafts)[i].logits.data(), nano.shape.vocabulary);
      const double margin = scores[0].to_number<double>() - scores[1].to_number<double>();
      EXPECT_TRUE(margin <= bound || (*drafts)[i].token == ids[0]) << golden.id() << ", " << name;
      if ((*drafts)[i].token != ids[0]) return;
      EXPECT_NEAR(ours[static_cast<size_t>(ids[0])], scores[0].to_number<double>(), std::max(bound, 5e-3))
          << golden.id() << ", " << name;
    }
  }

  static void check_mode(NanoModel& nano, const std::string& mode, const Bounds& bounds) {
    Agreement agreement;
    for (const NanoGolden& golden : nano_goldens(mode)) {
      *nano.recorder = {};
      Pass pass = prefill(nano, golden.ids());
      const size_t vocabulary = nano.shape.vocabulary;
      const std::vector<float> last(pass.logits.end() - static_cast<ptrdiff_t>(vocabulary),
                                    pass.logits.end());
      const Distance logits = distance(last, golden.floats("logits_last"));
      EXPECT_LE(logits.max_abs, bounds.max_abs) << golden.id();
      EXPECT_LE(logits.relative_l2, bounds.relative_l2) << golden.id();
      const Distance streams =
          distance(nano.recorder->last_streams.at(layers - 1), golden.floats("streams_last"));
      EXPECT_LE(streams.relative_l2, bounds.relative_l2) << golden.id();
      check_experts(nano, golden);
      check_index_rows(nano, golden);
      check_positions(golden, pass, vocabulary, bounds.decided_margin, agreement);
      check_drafts(nano, golden, pass, bounds.decided_margin);
      check_greedy(nano, golden, pass, bounds.decided_margin);
      printf("%-16s %s: max |difference| %.2e, relative L2 %.2e\n", golden.id().c_str(), mode.c_str(),
             logits.max_abs, logits.relative_l2);
    }
    printf("%s: top-1 equal at %zu of %zu listed positions\n", mode.c_str(), agreement.equal,
           agreement.listed);
  }
};

TEST_F(NanoGoldenTest, PlainF32) {
  NanoModel nano(DS4_NANO_DIR "/nano-f32.gguf", DS4_NANO_DIR "/nano-f32-mtp.gguf", false);
  check_mode(nano, "plain", plain_bounds);
}

TEST_F(NanoGoldenTest, PlainBf16) {
  NanoModel nano(DS4_NANO_DIR "/nano-bf16.gguf", DS4_NANO_DIR "/nano-bf16-mtp.gguf", false);
  check_mode(nano, "plain", plain_bounds);
}

TEST_F(NanoGoldenTest, RoundedF32) {
  NanoModel nano(DS4_NANO_DIR "/nano-f32.gguf", DS4_NANO_DIR "/nano-f32-mtp.gguf", true);
  check_mode(nano, "qat", rounded_bounds);
}

// The committed model: weights rounded to Q8_0, activations to 8 bits.
TEST_F(NanoGoldenTest, BundledQ8) {
  NanoModel nano(DS4_SOURCE_DIR "/models/nano/nano.gguf", DS4_SOURCE_DIR "/models/nano/nano-mtp.gguf", true);
  Agreement agreement;
  for (const NanoGolden& golden : nano_goldens("qat")) {
    Pass pass = prefill(nano, golden.ids());
    check_positions(golden, pass, nano.shape.vocabulary, 0.5, agreement);
  }
  printf("bundled: top-1 equal at %zu of %zu listed positions\n", agreement.equal, agreement.listed);
  EXPECT_EQ(agreement.decided_different, 0u);
  EXPECT_GE(static_cast<double>(agreement.equal), 0.95 * static_cast<double>(agreement.listed));
}

}  // namespace
}  // namespace ds4
