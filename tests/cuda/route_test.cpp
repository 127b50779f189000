// Routing on the device: the experts of the CPU's router, and their weights in float64.
#include "backend/cuda/moe/route.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "backend/cpu/reference.hpp"
#include "backend/cpu/router.hpp"
#include "device_copy.hpp"
#include "values.hpp"

namespace ds4::cuda {
namespace {

class RouteTest : public DeviceTest {};

constexpr float nan = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();

struct Routing {
  size_t experts = 0, used = 0;
  float scale = 1.5f;
  std::vector<float> bias;     // [experts], or empty
  std::vector<int32_t> table;  // [vocabulary][used], or empty
};

struct Routes {
  std::vector<int32_t> selected;  // [rows][used]
  std::vector<float> weights;

  bool operator==(const Routes&) const = default;
};

// `tokens` one for each row; logits [rows][experts].
Routes run(const Routing& r, const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
  std::vector<RowInfo> infos(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) infos[i].token = tokens[i];
  const DeviceCopy<float> device_logits(logits), bias(r.bias), weights(tokens.size() * r.used);
  const DeviceCopy<RowInfo> rows(infos);
  const DeviceCopy<int32_t> table(r.table), selected(tokens.size() * r.used);
  RouteJob job;
  job.logits = device_logits.data();
  job.rows = rows.data();
  job.bias = r.table.empty() ? bias.data() : nullptr;
  job.table = r.table.empty() ? nullptr : table.data();
  job.experts = static_cast<int>(r.experts);
  job.used = static_cast<int>(r.used);
  job.scale = r.scale;
  job.selected = selected.data();
  job.weights = weights.data();
  require(route(job, static_cast<int>(tokens.size()), nullptr));
  require(cudaDeviceSynchronize());
  return {selected.read(), weights.read()};
}

double probability(float logit) {
  const double x = logit;
  return std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
}

// True if the choice does not hang on the last bits of a probability: the worst chosen and the best other
// expert are equal in logit and bias, or far enough apart.
bool is_decided(const Routing& r, const float* logits) {
  if (!r.table.empty() || r.used == r.experts) return true;
  std::vector<size_t> order(r.experts);
  for (size_t e = 0; e < r.experts; ++e) order[e] = e;
  const auto score = [&](size_t e) { return probability(logits[e]) + r.bias[e]; };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return score(a) > score(b); });
  const double worst = score(order[r.used - 1]);
  return std::all_of(order.begin() + static_cast<std::ptrdiff_t>(r.used), order.end(), [&](size_t e) {
    if (logits[e] == logits[order[r.used - 1]] && r.bias[e] == r.bias[order[r.used - 1]]) return true;
    return std::abs(worst - score(e)) > 1e-5 * std::max(1.0, std::abs(worst));
  });
}

// Errors of exp and log1p (2 units of 2^-24 each, halved by the root), of the root, of the sum (of numbers
// above zero: an addend's error and a unit for each addition), of a division and a product stay below 16
// units of a weight, 1e-6. What float64 does not round to 0 may be 0 in F32.
void check_row(const Routing& r, const float* logits, int32_t token, const int32_t* selected,
               const float* weights) {
  std::vector<uint32_t> ids(r.used);
  std::vector<float> cpu_logits(logits, logits + r.experts), cpu_weights(r.used);
  const cpu::RouterSettings settings{r.experts, r.used, r.scale, r.bias.empty() ? nullptr : r.bias.data(),
                                     r.table.empty() ? nullptr : r.table.data()};
  cpu::route(cpu_logits.data(), token, settings, ids.data(), cpu_weights.data());
  std::vector<double> probabilities;
  for (size_t e = 0; e < r.experts; ++e) probabilities.push_back(probability(logits[e]));
  const auto expected = cpu::reference::weigh_experts(probabilities.data(), ids, double{r.scale});
  for (size_t k = 0; k < r.used; ++k) {
    ASSERT_EQ(selected[k], static_cast<int32_t>(ids[k])) << k << " of " << r.used << " of " << r.experts;
    ASSERT_NEAR(weights[k], expected.weights[k], 1e-6 * expected.weights[k] + 1e-30) << k;
    ASSERT_NEAR(weights[k], cpu_weights[k], 1e-6 * r.scale) << k;
  }
}

void check(const Routing& r, const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
  const Routes got = run(r, logits, tokens);
  for (size_t row = 0; row < tokens.size(); ++row) {
    SCOPED_TRACE(row);
    check_row(r, logits.data() + row * r.experts, tokens[row], got.selected.data() + row * r.used,
              got.weights.data() + row * r.used);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Rows of logits from `draw()`, all of them decided.
template <class Draw>
std::vector<float> decided_rows(const Routing& r, size_t rows, Draw&& draw) {
  std::vector<float> all, row(r.experts);
  for (size_t i = 0; i < rows; ++i) {
    do {
      for (float& x : row) x = draw();
    } while (!is_decided(r, row.data()));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

constexpr size_t expert_counts[] = {8, 9, 31, 32, 33, 64, 100, 128, 255, 256, 257, 320, 384};

TEST_F(RouteTest, ChoosesTheExpertsOfTheCpu) {
  std::mt19937 random(1);
  for (const size_t experts : expert_counts) {
    for (size_t used = 1; used <= 8; ++used) {
      Routing r{experts, used};
      r.scale = used % 2 == 0 ? 2.5f : 1.5f;
      r.bias = normal_values(experts, 0.3f, random);
      for (const float spread : {1.0f, 8.0f}) {
        std::normal_distribution<float> normal(0, spread);
        check(r, decided_rows(r, 16, [&] { return normal(random); }), std::vector<int32_t>(16));
      }
      check(r, decided_rows(r, 1, [&] { return static_cast<float>(random() % 60) - 30.0f; }), {0});
    }
  }
}

// Few different numbers, of which many are equal; one number everywhere; biases that differ.
TEST_F(RouteTest, TheLowerOfEqualExpertsWins) {
  std::mt19937 random(2);
  for (const size_t experts : expert_counts) {
    for (size_t used = 1; used <= 8; ++used) {
      Routing r{experts, used};
      r.bias.assign(experts, 0.25f);
      check(r, decided_rows(r, 16, [&] { return static_cast<float>(random() % 4) - 1.0f; }),
            std::vector<int32_t>(16));
      check(r, std::vector<float>(experts, -0.5f), {0});
      for (float& b : r.bias) b = random() % 2 == 0 ? 0.0f : -1.5f;
      check(r, std::vector<float>(2 * experts, 0.5f), {0, 0});
    }
  }
}

// Probabilities that are 0, that follow the logit itself, and weights that the floor of the sum holds down.
TEST_F(RouteTest, ExtremeLogits) {
  std::mt19937 random(3);
  for (const size_t experts : {8ul, 256ul, 384ul}) {
    Routing r{experts, 6};
    r.bias.assign(experts, 0.0f);
    check(r, std::vector<float>(experts, -infinity), {0});
    check(r, std::vector<float>(experts, -200.0f), {0});
    check(r, std::vector<float>(experts, 3e38f), {0});
    std::vector<float> logits(experts, -infinity);
    logits[experts - 1] = 30.0f;
    logits[experts / 2] = -30.0f;
    check(r, logits, {0});
    for (size_t e = 0; e < experts; ++e) logits[e] = 19.0f + 0.01f * static_cast<float>(e);
    std::shuffle(logits.begin(), logits.end(), random);
    check(r, logits, {0});
  }
}

// What damaged numbers give: an infinite logit is chosen first; NaN is below every number, and its weight is
// NaN, which the logits will show. Experts are valid and different in any case.
TEST_F(RouteTest, BrokenLogitsStillGiveExperts) {
  std::mt19937 random(4);
  for (const size_t experts : {8ul, 33ul, 256ul, 384ul}) {
    Routing r{experts, 6};
    r.bias = normal_values(experts, 0.3f, random);
    std::vector<float> logits;
    const size_t numbers[] = {experts, experts - 1, experts / 2, 6, 3, 0};  // the others of a row are NaN
    for (const size_t count : numbers) {
      std::vector<float> row = normal_values(experts, 1.0f, random);
      std::fill(row.begin() + static_cast<std::ptrdiff_t>(count), row.end(), nan);
      if (count == experts) row[experts / 3] = row[experts - 2] = infinity;
      std::shuffle(row.begin(), row.end(), random);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    const Routes got = run(r, logits, std::vector<int32_t>(std::size(numbers)));
    for (size_t row = 0; row < std::size(numbers); ++row) {
      const float* of_row = logits.data() + row * experts;
      std::set<int32_t> different;
      size_t broken = 0, infinite = 0;
      bool finite = true;
      for (size_t k = 0; k < 6; ++k) {
        const int32_t e = got.selected[row * 6 + k];
        ASSERT_TRUE(e >= 0 && static_cast<size_t>(e) < experts) << e;
        different.insert(e);
        broken += std::isnan(of_row[e]);
        infinite += std::isinf(of_row[e]);
        const float weight = got.weights[row * 6 + k];
        EXPECT_TRUE(std::isfinite(of_row[e]) || std::isnan(weight)) << weight;
        finite = finite && std::isfinite(weight);
      }
      EXPECT_EQ(different.size(), 6u) << numbers[row] << " numbers of " << experts;
      EXPECT_TRUE(std::is_sorted(got.selected.begin() + static_cast<std::ptrdiff_t>(row * 6),
                                 got.selected.begin() + static_cast<std::ptrdiff_t>(row * 6 + 6)));
      EXPECT_EQ(broken, numbers[row] < 6 ? 6 - numbers[row] : 0) << numbers[row] << " numbers of " << experts;
      EXPECT_EQ(infinite, numbers[row] == experts ? 2u : 0u) << numbers[row] << " numbers of " << experts;
      EXPECT_TRUE(finite || broken + infinite > 0) << numbers[row] << " numbers of " << experts;
    }
  }
}

TEST_F(RouteTest, TableByToken) {
  constexpr size_t vocabulary = 97;
  std::mt19937 random(5);
  for (const size_t experts : expert_counts) {
    for (size_t used = 1; used <= 8; ++used) {
      Routing r{experts, used};
      for (size_t token = 0; token < vocabulary; ++token) {
        std::vector<int32_t> all(experts);
        for (size_t e = 0; e < experts; ++e) all[e] = static_cast<int32_t>(e);
        std::shuffle(all.begin(), all.end(), random);
        r.table.insert(r.table.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(used));
      }
      std::vector<int32_t> tokens(16);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % vocabulary);
      tokens[3] = 0;
      tokens[7] = vocabulary - 1;
      check(r, normal_values(16 * experts, 3.0f, random), tokens);
    }
  }
}

// Same bits for a row alone, in another place, in a pass of decoding and in a chunk of a prompt.
TEST_F(RouteTest, RowsDoNotDependOnOthers) {
  std::mt19937 random(6);
  for (const size_t experts : {8ul, 256ul, 384ul}) {
    Routing r{experts, 6};
    r.bias = normal_values(experts, 0.3f, random);
    constexpr size_t rows = 600;
    const std::vector<float> logits = normal_values(rows * experts, 2.0f, random);
    const Routes all = run(r, logits, std::vector<int32_t>(rows));
    EXPECT_EQ(run(r, logits, std::vector<int32_t>(rows)), all);
    for (const size_t count : {1ul, 2ul, 5ul, 16ul}) {
      for (const size_t first : {0ul, 1ul, 17ul, 300ul, rows - count}) {
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(first * experts);
        const Routes some = run(r, {begin, begin + static_cast<std::ptrdiff_t>(count * experts)},
                                std::vector<int32_t>(count));
        const size_t values = count * r.used;
        EXPECT_EQ(std::memcmp(some.selected.data(), all.selected.data() + first * r.used, values * 4), 0);
        EXPECT_EQ(std::memcmp(some.weights.data(), all.weights.data() + first * r.used, values * 4), 0);
      }
    }
  }
}

TEST_F(RouteTest, MoreExpertsThanThereIsRoomForAreRefused) {
  RouteJob job;
  job.experts = 1025;
  job.used = 6;
  EXPECT_EQ(route(job, 1, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace ds4::cuda
