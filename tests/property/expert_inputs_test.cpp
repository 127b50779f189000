// What is collected of the experts' inputs: right by a computation in double precision, the same whatever the
// threads and chunks, and without effect on what the model computes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/reference.hpp"
#include "ds4/engine.hpp"
#include "format/number_formats.hpp"
#include "support/loaded_model.hpp"
#include "support/tiny_model.hpp"

namespace ds4 {
namespace {

namespace reference = cpu::reference;
using testing::LoadedModel;
using testing::must;

std::vector<Token> some_tokens(size_t count, uint32_t vocabulary) {
  std::vector<Token> tokens;
  tokens.reserve(count);
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>((i * i * 31 + 7 * i + 5) % vocabulary));
  return tokens;
}

bool same(const ExpertInputSums& a, const ExpertInputSums& b) {
  return a.gate_up == b.gate_up && a.down == b.down && a.tokens == b.tokens;
}

// --- Double precision: the experts' inputs from the streams before a layer and its attention's output. ---

using Values = std::vector<double>;

Values decode(const model::Tensor& tensor) {
  const uint64_t columns = tensor.dims[0], rows = tensor.elements() / columns;
  std::vector<float> row(columns);
  Values values;
  for (uint64_t r = 0; r < rows; ++r) {
    format::decode_row(tensor.type, tensor.data + r * format::row_bytes(tensor.type, columns), columns,
                       row.data());
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

Values multiply(const double* matrix, size_t rows, const Values& x) {
  Values out(rows);
  for (size_t r = 0; r < rows; ++r) out[r] = reference::dot(matrix + r * x.size(), x.data(), x.size());
  return out;
}

struct Mixer {
  explicit Mixer(const model::HyperConnectionWeights& weights)
      : fn(decode(weights.fn)), scale(decode(weights.scale)), base(decode(weights.base)) {}

  reference::HyperConnection<double> split(const Values& streams) const {
    Values mix = multiply(fn.data(), model::mix_width, streams);
    const double mean =
        reference::sum_of_squares(streams.data(), streams.size()) / static_cast<double>(streams.size());
    for (double& v : mix) v /= std::sqrt(mean + double{model::norm_epsilon});
    return reference::split_mix(mix.data(), scale.data(), base.data());
  }

  Values fn, scale, base;
};

// What the cpu backend computed of one pass.
class Seen final : public cpu::ForwardObserver {
 public:
  void on_streams(size_t, std::span<const float> values) override {
    streams.emplace_back(values.begin(), values.end());
  }
  void on_experts(size_t layer, size_t row, std::span<const uint32_t> chosen) override {
    experts.resize(std::max(experts.size(), layer + 1));
    experts[layer].resize(std::max(experts[layer].size(), row + 1));
    experts[layer][row].assign(chosen.begin(), chosen.end());
  }
  void on_index_rows(size_t, size_t, std::span<const uint32_t>, std::span<const float>) override {}

  std::vector<Values> streams;                              // [layers]: [T][4][d] after the layer
  std::vector<std::vector<std::vector<uint32_t>>> experts;  // [layers][T]
};

// The parts of a layer that its experts' inputs depend on.
struct LayerValues {
  explicit LayerValues(const model::LayerWeights& layer)
      : attention(layer.hc_attn),
        feed_forward(layer.hc_ffn),
        norm(decode(layer.ffn_norm)),
        router(decode(layer.router)),
        gates(decode(layer.gate_experts)),
        ups(decode(layer.up_experts)) {}

  Mixer attention, feed_forward;
  Values norm, router, gates, ups;
};

// Adds the inputs of layer `index` of one token, with the streams before the layer.
void add_token(const model::ModelShape& shape, const LayerValues& layer, Values streams,
               const Values& attended, const std::vector<uint32_t>& chosen, size_t index,
               ExpertInputSums& sums) {
  const size_t d = shape.width, width = shape.expert_width;
  const auto first = layer.attention.split(streams);
  reference::post_streams(streams.data(), attended.data(), first.post.data(), first.comb.data(), d);
  const auto second = layer.feed_forward.split(streams);
  Values x(d);
  reference::mix_streams(streams.data(), second.pre.data(), d, x.data());
  reference::rms_norm(x.data(), layer.norm.data(), d, x.data());

  Values logits = multiply(layer.router.data(), shape.experts, x);
  const auto route =
      reference::route(logits.data(), shape.experts, shape.experts_used, static_cast<const double*>(nullptr),
                       chosen, double{shape.routed_scale});
  for (size_t k = 0; k < chosen.size(); ++k) {
    const size_t e = route.experts[k], matrix = e * width * d, place = index * shape.experts + e;
    const Values gate = multiply(layer.gates.data() + matrix, width, x),
                 up = multiply(layer.ups.data() + matrix, width, x);
    Values mid(width);
    reference::swiglu(gate.data(), up.data(), double{model::swiglu_clamp}, route.weights[k], width,
                      mid.data());
    for (size_t i = 0; i < d; ++i) sums.gate_up[place * d + i] += x[i] * x[i];
    for (size_t i = 0; i < width; ++i) sums.down[place * width + i] += mid[i] * mid[i];
    ++sums.tokens[place];
  }
}

// Largest error of `got`, relative to the root mean square of the expert's expected sums.
double worst(const std::vector<double>& got, const std::vector<double>& expected, size_t columns) {
  double error = 0;
  for (size_t first = 0; first < expected.size(); first += columns) {
    const double scale =
        std::sqrt(reference::sum_of_squares(expected.data() + first, columns) / static_cast<double>(columns));
    for (size_t i = first; i < first + columns; ++i) {
      const double difference = std::abs(got[i] - expected[i]);
      if (difference > 0) error = std::max(error, difference / scale);
    }
  }
  return error;
}

class ExpertInputsTest : public ::testing::Test {
 protected:
  static std::string write(testing::TinyModelOptions options = {}) {
    const std::string path = ::testing::TempDir() + "expert-inputs-" + std::to_string(getpid());
    options.expert_gain = 5;  // reaches the clamps
    must(testing::write_tiny_model(path, options));
    return path;
  }
  ~ExpertInputsTest() override { std::remove(path_.c_str()); }

  ExpertInputSums collect(const LoadedModel& model, std::span<const Token> tokens, size_t chunk) const {
    auto sequence = model.sequence();
    const auto inputs = must(model.backend->create_expert_inputs());
    for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
      backend::EvalControl control;
      control.expert_inputs = inputs.get();
      must(model.backend->prefill(*sequence, tokens.subspan(begin, std::min(chunk, tokens.size() - begin)), 0,
                                  {}, control));
    }
    return must(model.backend->read(*inputs));
  }

  const std::string path_ = write();
};

TEST_F(ExpertInputsTest, AgreesWithDoublePrecision) {
  Seen seen;
  cpu::CpuOptions options;
  options.exact_activations = true;
  options.observer = &seen;
  const LoadedModel model(path_, "", options);
  const model::ModelShape& shape = model.shape;
  const size_t count = 24, d = shape.width, flat = model::streams * d;
  const auto tokens = some_tokens(count, shape.vocabulary);

  backend::Capture attention{Component::attention, count, {}};
  const auto inputs = must(model.backend->create_expert_inputs());
  backend::EvalControl control;
  control.capture = &attention;
  control.expert_inputs = inputs.get();
  must(model.backend->prefill(*model.sequence(), tokens, 0, {}, control));
  const ExpertInputSums sums = must(model.backend->read(*inputs));

  ExpertInputSums expected = sums;
  std::fill(expected.gate_up.begin(), expected.gate_up.end(), 0.0);
  std::fill(expected.down.begin(), expected.down.end(), 0.0);
  std::fill(expected.tokens.begin(), expected.tokens.end(), 0u);
  const Values embedding = decode(model.weights.token_embedding);
  for (size_t l = 0; l < shape.layers; ++l) {
    const LayerValues layer(model.weights.layers[l]);
    for (size_t t = 0; t < count; ++t) {
      Values streams;
      if (l > 0) {
        const auto begin = seen.streams[l - 1].begin() + static_cast<ptrdiff_t>(t * flat);
        streams.assign(begin, begin + static_cast<ptrdiff_t>(flat));
      } else {
        const auto row = embedding.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(tokens[t]) * d);
        for (size_t h = 0; h < model::streams; ++h)
          streams.insert(streams.end(), row, row + static_cast<ptrdiff_t>(d));
      }
      const auto output = attention.values.begin() + static_cast<ptrdiff_t>((l * count + t) * d);
      add_token(shape, layer, std::move(streams), Values(output, output + static_cast<ptrdiff_t>(d)),
                seen.experts[l][t], l, expected);
    }
  }
  EXPECT_EQ(sums.tokens, expected.tokens);
  EXPECT_LT(worst(sums.gate_up, expected.gate_up, d), 1e-5);
  EXPECT_LT(worst(sums.down, expected.down, shape.expert_width), 1e-4);
}

TEST_F(ExpertInputsTest, EveryTokenCountsForItsExpertsOfEveryLayer) {
  const LoadedModel model(path_);
  const auto sums = collect(model, some_tokens(40, model.shape.vocabulary), 40);
  EXPECT_EQ(sums.layers, model.shape.layers);
  EXPECT_EQ(sums.experts, model.shape.experts);
  for (size_t l = 0; l < sums.layers; ++l) {
    const auto begin = sums.tokens.begin() + static_cast<ptrdiff_t>(l * sums.experts);
    EXPECT_EQ(std::accumulate(begin, begin + sums.experts, uint64_t{0}), 40 * model.shape.experts_used) << l;
  }
}

TEST_F(ExpertInputsTest, NeitherThreadsNorChunksChangeABit) {
  cpu::CpuOptions one, three;
  one.threads = 1;
  three.threads = 3;
  const LoadedModel first(path_, "", one), second(path_, "", three);
  const auto tokens = some_tokens(160, first.shape.vocabulary);
  const auto expected = collect(first, tokens, 160);
  for (const size_t chunk : {1, 7, 128, 160})
    EXPECT_TRUE(same(collect(second, tokens, chunk), expected)) << chunk;
  EXPECT_FALSE(same(collect(first, std::span(tokens).first(159), 160), expected));
}

// More pairs of tokens and experts than the backend holds at once.
TEST_F(ExpertInputsTest, LongChunksAreCollectedInParts) {
  testing::TinyModelOptions options;
  options.shape.layers = 2;
  options.shape.ratios = {0, 4};
  options.shape.hash_layers = 1;
  options.shape.experts_used = 8;
  const LoadedModel model(write(options));
  const size_t count = cpu::expert_group_slots / model.shape.experts_used + 100;
  const auto tokens = some_tokens(count, model.shape.vocabulary);
  EXPECT_TRUE(same(collect(model, tokens, count), collect(model, tokens, 300)));
}

TEST_F(ExpertInputsTest, CollectingChangesNoLogit) {
  const LoadedModel model(path_);
  const auto tokens = some_tokens(50, model.shape.vocabulary);
  auto plain = model.sequence(), collected = model.sequence();
  const auto expected = model.prefill(*plain, tokens);
  const auto inputs = must(model.backend->create_expert_inputs());
  backend::EvalControl control;
  control.expert_inputs = inputs.get();
  std::vector<float> logits(model.shape.vocabulary);
  must(model.backend->prefill(*collected, tokens, 1, logits, control));
  EXPECT_EQ(logits, expected);
}

TEST_F(ExpertInputsTest, SessionsAddWhatTheyEvaluate) {
  EngineOptions options;
  options.model_path = path_;
  options.backend = BackendChoice::cpu;
  options.prefill_chunk = 16;
  const Engine engine = must(Engine::open(options)), other = must(Engine::open(options));
  auto session = must(engine.create_session(200));
  auto inputs = must(engine.create_expert_inputs());
  SyncOptions sync;
  sync.expert_inputs = &inputs;
  const auto tokens = some_tokens(60, engine.info().vocabulary);
  must(session.sync(std::span(tokens).first(40), sync));
  const uint64_t routes = uint64_t{engine.info().layers} * engine.info().experts_used;
  const auto count = [&] {
    const auto sums = must(inputs.sums());
    return std::accumulate(sums.tokens.begin(), sums.tokens.end(), uint64_t{0});
  };
  EXPECT_EQ(count(), 40 * routes);
  must(session.sync(tokens, sync));  // the first 40 are reused
  EXPECT_EQ(count(), 60 * routes);
  EXPECT_TRUE(same(must(inputs.sums()), collect(LoadedModel(path_), tokens, 60)));

  auto foreign = must(other.create_session(200));
  const auto refused = foreign.sync(tokens, sync);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(count(), 60 * routes);
}

}  // namespace
}  // namespace ds4
