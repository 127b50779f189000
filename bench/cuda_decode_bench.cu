// Decoding on a model of the Flash shape without a file: microseconds of a layer of each kind, and what a
// token of all 43 layers takes by that. Layers have weights of their own, but for the experts, of which a
// token reads 6 of 256; everything is filled with random numbers, so the tokens mean nothing and a checksum
// of the logits tells whether two builds compute the same bits. Usage: ds4_cuda_decode_bench [--json] [layers
// [points [ratio]]]; points are POSITIONxROWS, separated by commas; without a ratio all three kinds are
// measured.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/pass.hpp"
#include "backend/cuda/repack/repack.hpp"
#include "backend/cuda/state/cuda_sequence.hpp"
#include "cuda_timing.hpp"

namespace ds4::cuda {
namespace {

using format::TensorType;

__host__ __device__ uint32_t random_word(uint64_t i, uint64_t seed) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return static_cast<uint32_t>(x >> 32);
}

enum class Fill { bits, f16, f16_scales, f32_small, f32_near_one };

__global__ void fill_kernel(uint32_t* words, size_t count, Fill fill, uint64_t seed) {
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    const uint32_t r = random_word(i, seed);
    uint32_t word = r;
    if (fill == Fill::f16) word = (r & 0x87ff87ffu) | 0x20002000u;         // +-[2^-7, 2^-5)
    if (fill == Fill::f16_scales) word = (r & 0x03ff03ffu) | 0x08000800u;  // 2^-13
    if (fill == Fill::f32_small) word = (r & 0x807fffffu) | 0x3c000000u;
    if (fill == Fill::f32_near_one) word = (r & 0x007fffffu) | 0x3f800000u;
    words[i] = word;
  }
}

/// Finite rows in all pages and the ring.
__global__ void fill_cache_kernel(const LayerCache* caches, int layers, uint32_t ratio, uint32_t rows) {
  for (int l = 0; l < layers; ++l) {
    const LayerCache& cache = caches[l];
    const auto attention_row = [&](uint8_t* row, uint64_t seed) {
      for (int i = threadIdx.x; i < attention_row_bytes; i += blockDim.x) {
        const uint32_t r = random_word(i, seed);
        row[i] = i < 448      ? r & 0xb7u
                 : i < 455    ? 118u + r % 4
                 : i == 455   ? 0u
                 : i % 2 == 0 ? r & 0xffu
                              : 0x30u;
      }
    };
    for (uint32_t j = blockIdx.x; j < ring_slots; j += gridDim.x) {
      attention_row(cache.ring + size_t{j} * attention_row_bytes, j + 1000u * l);
    }
    for (uint32_t j = blockIdx.x; ratio != 0 && j < rows; j += gridDim.x) {
      attention_row(cache.pages[j / rows_per_page] + j % rows_per_page * attention_row_bytes, j + 77777u * l);
      if (ratio != 4) continue;
      uint8_t* index_row = cache.index_pages[j / rows_per_page] + j % rows_per_page * index_row_bytes;
      for (int i = threadIdx.x; i < index_row_bytes; i += blockDim.x) {
        const uint32_t r = random_word(i, j + 99999u * l);
        index_row[i] = i < 64 ? r & 0xffu : 122u + r % 4;
      }
    }
  }
}

/// Owns the weights that it hands out, whose magnitudes keep the activations of many layers finite.
class Weights {
 public:
  uint8_t* take(size_t bytes, Fill fill) {
    const size_t words = (bytes + 3) / 4;
    auto* data = arena_.take<uint32_t>(words);
    fill_kernel<<<1024, 256>>>(data, words, fill, ++seed_);
    check(cudaGetLastError(), "fill_kernel");
    return reinterpret_cast<uint8_t*>(data);
  }
  const float* vector(size_t count, Fill fill = Fill::f32_near_one) {
    return reinterpret_cast<const float*>(take(count * 4, fill));
  }
  DeviceMatrix matrix(TensorType type, uint32_t rows, uint32_t cols) {
    DeviceMatrix m{type, rows, cols, nullptr, nullptr, nullptr};
    if (type == TensorType::f16) {
      m.quants = take(size_t{rows} * cols * 2, Fill::f16);
      return m;
    }
    const auto plane = [&](Plane which, Fill fill) -> const uint8_t* {
      const size_t bytes = plane_bytes(type, rows, cols, which);
      return bytes == 0 ? nullptr : take(bytes, fill);
    };
    m.quants = plane(Plane::quants, Fill::bits);
    m.scales = plane(Plane::scales, type == TensorType::q8_0 ? Fill::f16_scales : Fill::bits);
    m.extras = plane(Plane::extras, Fill::f16_scales);
    return m;
  }
  DeviceMixer mixer(uint32_t outputs, uint32_t width) {
    return {matrix(TensorType::f16, outputs, 4 * width), vector(3), vector(24, Fill::f32_small)};
  }
  DeviceCompressor compressor(uint32_t width, uint32_t d, uint32_t ratio, uint32_t dim) {
    return {matrix(TensorType::f16, width, d), matrix(TensorType::f16, width, d),
            vector(size_t{ratio} * width, Fill::f32_small), vector(dim)};
  }

 private:
  bench::Arena arena_;
  uint64_t seed_ = 0;
};

struct Experts {
  DeviceMatrix gate, up, down;
};

DeviceLayer make_layer(Weights& memory, const model::ModelShape& s, uint32_t ratio, const Experts& experts) {
  const TensorType q8 = TensorType::q8_0, f16 = TensorType::f16;
  DeviceLayer l;
  l.ratio = ratio;
  l.hc_attn = memory.mixer(24, s.width);
  l.hc_ffn = memory.mixer(24, s.width);
  l.attn_norm = memory.vector(s.width);
  l.ffn_norm = memory.vector(s.width);
  l.q_a_norm = memory.vector(s.q_rank);
  l.kv_norm = memory.vector(model::head_dim);
  l.sinks = memory.vector(s.heads);
  l.q_a = memory.matrix(q8, s.q_rank, s.width);
  l.q_b = memory.matrix(q8, s.q_width(), s.q_rank);
  l.kv = memory.matrix(q8, model::head_dim, s.width);
  l.output_a = memory.matrix(q8, s.low_width(), s.group_width());
  l.output_b = memory.matrix(q8, s.width, s.low_width());
  if (ratio != 0) {
    l.compressor = memory.compressor(model::compressor_width(ratio, model::head_dim), s.width, ratio, 512);
  }
  if (ratio == 4) {
    l.index_compressor = memory.compressor(256, s.width, ratio, 128);
    l.index_q_b = memory.matrix(f16, s.index_heads * model::index_head_dim, s.q_rank);
    l.index_proj = memory.matrix(f16, s.index_heads, s.width);
  }
  l.router = memory.matrix(f16, s.experts, s.width);
  l.router_bias = memory.vector(s.experts, Fill::f32_small);
  l.gate_experts = experts.gate;
  l.up_experts = experts.up;
  l.down_experts = experts.down;
  l.gate_shared = memory.matrix(q8, s.expert_width, s.width);
  l.up_shared = memory.matrix(q8, s.expert_width, s.width);
  l.down_shared = memory.matrix(q8, s.width, s.expert_width);
  return l;
}

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

/// A model of `layers` layers of one kind, and sequences at one position.
class Model {
 public:
  Model(const model::ModelShape& shape, const DeviceWeights& weights, uint64_t position, size_t sequences,
        cudaStream_t stream)
      : shape_(shape), layout_(shape_), stream_(stream), pass_(shape_, weights, stream) {
    for (size_t i = 0; i < sequences; ++i) {
      sequences_.push_back(std::make_unique<CudaSequence>(shape_, layout_, pools_, stream));
      CudaSequence& s = *sequences_.back();
      s.prepare_rows(position, stream);
      s.state.position = position;
      fill_cache_kernel<<<256, 128, 0, stream>>>(
          s.layer_caches(), static_cast<int>(shape_.layers), shape_.ratios.front(),
          shape_.ratios.front() == 0 ? 0u : static_cast<uint32_t>(position / shape_.ratios.front()));
    }
    check(cudaStreamSynchronize(stream), "sequences");
  }

  void token(size_t step) {
    std::vector<RowInfo> infos;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      CudaSequence& s = *sequences_[i];
      s.prepare_rows(1, stream_);
      infos.push_back(
          {static_cast<int32_t>((step * 5 + i * 3) % 16), 0, s.state.position++, 1, 0, s.layer_caches()});
    }
    pass_.run(infos);
  }

  uint64_t checksum(std::vector<float>& logits) {
    const size_t bytes = sequences_.size() * shape_.vocabulary * sizeof(float);
    check(cudaMemcpyAsync(logits.data(), pass_.logits(0, sequences_.size()), bytes, cudaMemcpyDeviceToHost,
                          stream_),
          "logits");
    check(cudaStreamSynchronize(stream_), "logits");
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < sequences_.size() * shape_.vocabulary; ++i) {
      if (!std::isfinite(logits[i])) return 0;
      uint32_t bits;
      std::memcpy(&bits, &logits[i], 4);
      hash = (hash ^ bits) * 1099511628211u;
    }
    return hash;
  }

  /// Median microseconds of a pass without its logits.
  double time(int repeats) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      check(cudaStreamSynchronize(stream_), "pass");
      const auto begin = Clock::now();
      token(static_cast<size_t>(i));
      check(cudaStreamSynchronize(stream_), "pass");
      times.push_back(microseconds_since(begin));
    }
    std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
    return times[static_cast<size_t>(repeats) / 2];
  }
  double time_logits() {
    double best = 1e30;
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      pass_.logits(0, sequences_.size());
      check(cudaStreamSynchronize(stream_), "logits");
      best = std::min(best, microseconds_since(begin));
    }
    return best;
  }

 private:
  model::ModelShape shape_;
  ArenaLayout layout_;
  RowPools pools_;
  cudaStream_t stream_;
  Pass pass_;
  std::vector<std::unique_ptr<CudaSequence>> sequences_;
};

model::ModelShape flash_layers(uint32_t layers, uint32_t ratio) {
  model::ModelShape shape = model::known_shape(model::Variant::flash);
  shape.layers = layers;
  shape.hash_layers = 0;
  shape.ratios.assign(layers, ratio);
  return shape;
}

constexpr uint32_t ratios[3] = {0, 4, 128};
constexpr double layers_of_ratio[3] = {2, 21, 20};

/// Microseconds at one position with some rows in a pass.
struct Point {
  uint64_t position;
  size_t rows;
  double layer[3] = {}, fixed = 0, head = 0;

  std::string name() const {
    return "position " + std::to_string(position) + ", " + bench::counted(rows, "row");
  }
};

void print_layer(const bench::Report& report, const Point& point, int kind, uint64_t checksum) {
  const std::string name = "layer of ratio " + std::to_string(ratios[kind]) + ", " + point.name();
  std::printf(report.json() ? "{\"name\":\"%s\",\"us\":%.3f,\"checksum\":\"%016llx\"}\n"
                            : "%-44s %8.2f us, checksum of the logits %016llx\n",
              name.c_str(), point.layer[kind], static_cast<unsigned long long>(checksum));
  std::fflush(stdout);
}

void print_token(const bench::Report& report, const Point& point) {
  double layers = 0;
  for (int kind = 0; kind < 3; ++kind) layers += layers_of_ratio[kind] * point.layer[kind];
  const double token = layers + point.fixed + point.head;
  std::printf(report.json() ? "{\"name\":\"token, %s\",\"us\":%.1f,\"layers_us\":%.1f,\"fixed_us\":%.1f,"
                              "\"logits_us\":%.1f,\"tokens_per_s\":%.1f}\n"
                            : "token, %s: %.0f us, of that 43 layers %.0f us, fixed %.0f us, logits %.0f us: "
                              "%.1f tokens/s\n",
              point.name().c_str(), token, layers, point.fixed, point.head,
              static_cast<double>(point.rows) * 1e6 / token);
  std::fflush(stdout);
}

struct Plan {
  uint32_t layers = 8;
  std::vector<Point> points = {{2000, 1}, {32000, 1}, {2000, 2}, {2000, 4}, {2000, 8}, {2000, 16}};
  std::optional<uint32_t> only_ratio;
};

void measure(const bench::Report& report, Plan& plan) {
  const uint32_t many = plan.layers;
  constexpr uint32_t few = 2;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const model::ModelShape flash = flash_layers(1, 0);
  Weights shared;
  const TensorType iq2 = TensorType::iq2_xxs, q2 = TensorType::q2_k;
  const Experts experts = {shared.matrix(iq2, flash.experts * flash.expert_width, flash.width),
                           shared.matrix(iq2, flash.experts * flash.expert_width, flash.width),
                           shared.matrix(q2, flash.experts * flash.width, flash.expert_width)};
  std::vector<float> logits(size_t{max_rows} * flash.vocabulary);

  DeviceWeights weights;
  weights.output = shared.matrix(TensorType::q8_0, flash.vocabulary, flash.width);
  weights.output_norm = shared.vector(flash.width);
  weights.hc_head = shared.mixer(4, flash.width);
  weights.embedding = shared.matrix(TensorType::f16, 16, flash.width);
  for (int kind = 0; kind < 3; ++kind) {
    if (plan.only_ratio.value_or(ratios[kind]) != ratios[kind]) continue;
    Weights memory;
    weights.layers.clear();
    for (uint32_t l = 0; l < many; ++l) {
      weights.layers.push_back(make_layer(memory, flash, ratios[kind], experts));
    }
    check(cudaDeviceSynchronize(), "weights");
    for (Point& point : plan.points) {
      double time[2];
      uint64_t hash = 0;
      for (const bool all : {false, true}) {
        const uint32_t layers = all ? many : few;
        const std::vector<DeviceLayer> every = weights.layers;
        weights.layers.resize(layers);
        Model model(flash_layers(layers, ratios[kind]), weights, point.position, point.rows, stream);
        for (size_t step = 0; step < 5; ++step) model.token(step);
        if (all) hash = model.checksum(logits);
        time[all] = model.time(21);
        if (all) point.head = model.time_logits();
        weights.layers = every;
      }
      point.layer[kind] = (time[1] - time[0]) / (many - few);
      point.fixed = time[0] - few * point.layer[kind];
      print_layer(report, point, kind, hash);
    }
  }
  check(cudaStreamDestroy(stream), "stream");
}

std::optional<uint32_t> number(const std::string& text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Points as "2000x1,600x16".
std::optional<std::vector<Point>> read_points(const std::string& text) {
  std::vector<Point> points;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size()), cross = text.find('x', begin);
    if (cross >= end) return std::nullopt;
    const std::optional<uint32_t> position = number(text.substr(begin, cross - begin));
    const std::optional<uint32_t> rows = number(text.substr(cross + 1, end - cross - 1));
    if (!position || !rows || *rows < 1 || *rows > max_rows) return std::nullopt;
    points.push_back({*position, *rows});
    begin = end + 1;
  }
  return points;
}

/// Nothing if an argument cannot be read or is out of range.
std::optional<Plan> make_plan(const std::vector<std::string>& arguments) {
  Plan plan;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == 1) {
      std::optional<std::vector<Point>> points = read_points(arguments[i]);
      if (!points) return std::nullopt;
      plan.points = std::move(*points);
      continue;
    }
    const std::optional<uint32_t> value = number(arguments[i]);
    if (!value) return std::nullopt;
    if (i == 0) {
      if (*value < 3 || *value > 43) return std::nullopt;
      plan.layers = *value;
    } else {
      if (std::find(std::begin(ratios), std::end(ratios), *value) == std::end(ratios)) return std::nullopt;
      plan.only_ratio = *value;
    }
  }
  return plan;
}

}  // namespace
}  // namespace ds4::cuda

int main(int argc, char** argv) {
  const ds4::bench::Options options = ds4::bench::read_options(argc, argv, 3);
  std::optional<ds4::cuda::Plan> plan = ds4::cuda::make_plan(options.arguments);
  if (!plan) {
    std::fprintf(stderr,
                 "%s: expected 3 to 43 layers, then points like 2000x1,600x16, then ratio 0, 4 or 128\n",
                 argv[0]);
    return 2;
  }
  const ds4::bench::Report report(options, "decoding layers of the Flash shape");
  try {
    ds4::cuda::measure(report, *plan);
  } catch (const ds4::cuda::CudaFailure& failure) {
    std::fprintf(stderr, "%s\n", failure.error.message.c_str());
    return 1;
  }
  if (plan->only_ratio) return 0;
  for (const ds4::cuda::Point& point : plan->points) ds4::cuda::print_token(report, point);
  return 0;
}
