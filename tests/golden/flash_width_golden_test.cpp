// The CPU backend at the widths of Flash against an independent implementation in double precision
// (tests/data/flash-width.json, docs/model.md §16): logits, streams after every layer, routed experts and
// index rows. The model is random, in the number formats of published files, and written here.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "support/flash_width.hpp"
#include "support/ops_vectors.hpp"

namespace ds4 {
namespace {

namespace json = boost::json;
using testing::FlashWidthCounts;
using testing::LoadedModel;
using testing::must;
using testing::PassRecorder;

// Removed with everything in it, also when a check throws.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "ds4-flash-width-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder like " + name);
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::filesystem::path path;
};

// What a mode has to meet: relative L2 of each position's listed values, and the mean over positions.
struct Bounds {
  double each = 0;
  double mean = 0;
  // Index rows and experts are equal, but for this many rows where the cut is closer than `near_tie` standard
  // deviations of the scores, and this many tokens.
  double near_tie = 0;
  size_t rows_may_differ = 0;
  size_t tokens_may_differ = 0;
};

template <class T>
std::vector<T> numbers(const json::value& array) {
  std::vector<T> result;
  for (const auto& value : array.as_array()) result.push_back(value.to_number<T>());
  return result;
}

// Of listed values, gathered position by position.
class Distances {
 public:
  explicit Distances(std::string what) : what_(std::move(what)) {}

  void add(const std::vector<double>& ours, const std::vector<double>& wanted) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
      difference += (ours[i] - wanted[i]) * (ours[i] - wanted[i]);
      norm += wanted[i] * wanted[i];
    }
    values_.push_back(std::sqrt(difference / norm));
  }
  void check(const Bounds& bounds) const {
    double sum = 0;
    for (double value : values_) sum += value;
    const double largest = *std::max_element(values_.begin(), values_.end());
    const double mean = sum / static_cast<double>(values_.size());
    printf("  %s: relative L2 %.1e on average, %.1e at most\n", what_.c_str(), mean, largest);
    EXPECT_LE(largest, bounds.each) << what_;
    EXPECT_LE(mean, bounds.mean) << what_;
  }

 private:
  std::string what_;
  std::vector<double> values_;
};

class FlashWidthGoldenTest : public ::testing::Test {
 protected:
  FlashWidthGoldenTest()
      : golden(json::parse(test::read_file(DS4_SOURCE_DIR "/tests/data/flash-width.json"))),
        positions(numbers<size_t>(golden.at("positions"))),
        stream_indices(numbers<size_t>(golden.at("stream_indices"))),
        tokens(numbers<Token>(golden.at("tokens"))) {
    const auto count = [&](const char* name) { return golden.at("counts").at(name).to_number<uint32_t>(); };
    counts = {count("layers"), count("experts"), count("experts_used"), count("index_top_k"),
              count("vocabulary")};
    path = (folder.path / "model.gguf").string();
    must(write_tiny_model(path, flash_width_options(counts)));
  }

  void check_mode(const char* name, const json::value& wanted, bool round_trips, bool exact_activations,
                  const Bounds& bounds) {
    printf("%s\n", name);
    SCOPED_TRACE(name);
    PassRecorder recorder;
    cpu::CpuOptions options;
    options.round_trips = round_trips;
    options.exact_activations = exact_activations;
    options.observer = &recorder;
    const LoadedModel model(path, "", options);
    const auto logits = record_pass(model, recorder, tokens, tokens.size());
    check_streams(recorder, wanted.at("streams").as_array(), bounds);
    check_logits(logits, wanted.at("logits").as_array(), bounds);
    check_experts(recorder, wanted.at("experts").as_array(), bounds);
    check_index_rows(recorder, wanted.at("rows").as_object(), bounds);
  }

  void check_logits(const std::vector<float>& logits, const json::array& wanted, const Bounds& bounds) {
    Distances distances("logits");
    for (const json::value& row : wanted) {
      const float* ours = logits.data() + row.at("position").to_number<size_t>() * counts.vocabulary;
      std::vector<double> listed;
      for (size_t id : numbers<size_t>(row.at("ids"))) listed.push_back(ours[id]);
      distances.add(listed, numbers<double>(row.at("values")));
    }
    distances.check(bounds);
  }

  void check_streams(const PassRecorder& recorder, const json::array& wanted, const Bounds& bounds) {
    for (size_t layer = 0; layer < wanted.size(); ++layer) {
      const std::vector<float>& streams = recorder.streams.at(layer);
      const size_t width = streams.size() / tokens.size();
      Distances distances("streams after layer " + std::to_string(layer));
      for (size_t i = 0; i < positions.size(); ++i) {
        std::vector<double> listed;
        for (size_t index : stream_indices) listed.push_back(streams[positions[i] * width + index]);
        distances.add(listed, numbers<double>(wanted[layer].as_array()[i]));
      }
      distances.check(bounds);
    }
  }

  // One digit for each expert.
  void check_experts(const PassRecorder& recorder, const json::array& wanted, const Bounds& bounds) {
    for (size_t layer = 0; layer < wanted.size(); ++layer) {
      const std::string digits(wanted[layer].as_string());
      const std::vector<uint32_t>& experts = recorder.experts.at(layer);
      ASSERT_EQ(experts.size(), digits.size());
      size_t different = 0;
      for (size_t t = 0; t < tokens.size(); ++t) {
        bool equal = true;
        for (size_t k = 0; k < counts.experts_used; ++k) {
          const size_t i = t * counts.experts_used + k;
          equal = equal && experts[i] == static_cast<uint32_t>(digits[i] - '0');
        }
        different += !equal;
      }
      EXPECT_LE(different, bounds.tokens_may_differ) << "tokens with other experts in layer " << layer;
    }
  }

  void check_index_rows(const PassRecorder& recorder, const json::object& wanted, const Bounds& bounds) {
    ASSERT_EQ(recorder.index_rows.size(), wanted.size());
    size_t different = 0;
    for (const auto& [layer, selections] : wanted) {
      const auto& by_position = recorder.index_rows.at(std::stoul(std::string(layer)));
      // The first token that sees more rows than it may keep, and all after it.
      const size_t first = model::csa_ratio * (counts.index_top_k + 1) - 1;
      EXPECT_EQ(by_position.size(), tokens.size() - first);
      for (const json::value& selection : selections.as_array()) {
        const auto rows = numbers<uint32_t>(selection.at("rows"));
        const auto& ours = by_position.at(selection.at("position").to_number<size_t>());
        std::vector<uint32_t> missing;
        std::set_difference(rows.begin(), rows.end(), ours.begin(), ours.end(), std::back_inserter(missing));
        const bool near_tie = selection.at("gap").to_number<double>() < bounds.near_tie;
        EXPECT_EQ(ours.size(), rows.size());
        EXPECT_LE(missing.size(), near_tie ? bounds.rows_may_differ : 0)
            << "layer " << std::string(layer) << ", position " << selection.at("position");
        different += missing.size();
      }
    }
    printf("  %zu listed index rows differ\n", different);
  }

  json::value golden;
  std::vector<size_t> positions, stream_indices;
  std::vector<Token> tokens;
  FlashWidthCounts counts;
  TemporaryFolder folder;
  std::string path;
};

// Rounding to FP8 and FP4 turns the last bit of a sum into a step of the format, and such a step may swap two
// index rows with nearly equal scores; hence the three sets of bounds.
TEST_F(FlashWidthGoldenTest, EveryMode) {
  const json::value& plain = golden.at("modes").at("plain");
  const json::value& rounded = golden.at("modes").at("rounded");
  check_mode("no round trips, F32 activations", plain, false, true, {1e-5, 5e-6, 0, 0, 0});
  check_mode("F32 activations", rounded, true, true, {2e-3, 5e-4, 0.1, 1, 2});
  check_mode("8-bit activations", rounded, true, false, {2e-2, 1e-2, 0.3, 4, 8});
}

}  // namespace
}  // namespace ds4
