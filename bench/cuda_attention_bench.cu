// Attention-side kernels of decoding at the shape of Flash, for rows of sequences of their own: microseconds
// with all rows of the caches read from memory (L2 is flushed before every launch), and of launches back to
// back, which find in L2 what fits there. Bytes are those of the cached rows.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/attention.hpp"
#include "backend/cuda/indexer/indexer.hpp"
#include "cuda_timing.hpp"

namespace {

using namespace ds4::cuda;
using ds4::bench::Arena;
using ds4::bench::Memory;

constexpr uint32_t heads = 64, index_heads = 64, top_k = 512;
constexpr int launches = 20;
constexpr size_t flush_bytes = size_t{128} << 20;

std::vector<float> random_floats(size_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

struct RowFormat {
  size_t bytes, first_exponent, exponents;
};
constexpr RowFormat attention_format = {attention_row_bytes, 448, 8};
constexpr RowFormat index_format = {index_row_bytes, 64, 4};

// Random codes, scales near 1.
std::vector<uint8_t> random_rows(size_t count, const RowFormat& format) {
  static std::mt19937 random(2);
  std::vector<uint8_t> rows(count * format.bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t at = i % format.bytes;
    const bool exponent = at >= format.first_exponent && at < format.first_exponent + format.exponents;
    // 0xbb keeps F16 finite and E4M3 off NaN.
    rows[i] = exponent ? static_cast<uint8_t>(120 + random() % 4) : static_cast<uint8_t>(random() & 0xbb);
  }
  return rows;
}

// Pages with the same content, at addresses of their own.
uint8_t** page_table(Arena& arena, size_t rows, const RowFormat& format) {
  const size_t page_bytes = rows_per_page * format.bytes, count = (rows + rows_per_page - 1) / rows_per_page;
  const std::vector<uint8_t> page = random_rows(rows_per_page, format);
  auto* data = arena.take<uint8_t>(count * page_bytes);
  std::vector<uint8_t*> pages;
  for (size_t i = 0; i < count; ++i) {
    pages.push_back(data + i * page_bytes);
    ds4::bench::require(cudaMemcpy(pages.back(), page.data(), page_bytes, cudaMemcpyHostToDevice));
  }
  return arena.upload(pages);
}

const LayerCache* make_cache(Arena& arena, uint64_t position, uint32_t ratio) {
  LayerCache cache;
  cache.ring = arena.upload(random_rows(ring_slots, attention_format));
  cache.pages = page_table(arena, visible_rows(position, ratio), attention_format);
  if (ratio == 4) cache.index_pages = page_table(arena, visible_rows(position, 4), index_format);
  return arena.upload(std::vector<LayerCache>{cache});
}

using Launch = std::function<cudaError_t(cudaStream_t)>;

class Timer {
 public:
  explicit Timer(const ds4::bench::Report& report) : report_(report) {}

  void add(const std::string& name, double bytes, const Launch& launch) const {
    // What is left when the time of the flushes alone is taken off.
    report_.add({name, flushed(launch) - flushed(nullptr), bytes, 0});
    const double warm =
        ds4::bench::graph_microseconds(launches, [&](int, cudaStream_t s) { return launch(s); });
    report_.add({name + ", back to back", warm, 0, 0});
  }

 private:
  double flushed(const Launch& launch) const {
    return ds4::bench::graph_microseconds(launches, [&](int i, cudaStream_t stream) {
      const cudaError_t status = cudaMemsetAsync(flush_.as<void>(), i, flush_bytes, stream);
      return status != cudaSuccess || launch == nullptr ? status : launch(stream);
    });
  }

  const ds4::bench::Report& report_;
  Memory flush_{flush_bytes};
};

void bench_context(const Timer& timer, uint64_t context, uint32_t count) {
  const uint64_t position = context - 1;
  const size_t width = size_t{heads} * 512;
  const std::string suffix =
      ", " + std::to_string(context / 1024) + "k of context, " + ds4::bench::counted(count, "row");
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    Arena arena;
    const uint32_t visible = visible_rows(position, ratio);
    std::vector<RowInfo> infos(count);
    for (RowInfo& info : infos) {
      info.position = position;
      info.layers = make_cache(arena, position, ratio);
    }
    const RowInfo* rows = arena.upload(infos);
    const float* frequencies = arena.upload(std::vector<float>(32, 0.01f));
    uint32_t* selected = nullptr;
    if (ratio == 4) {
      selected = arena.take<uint32_t>(size_t{count} * top_k);
      IndexerArguments a{rows, count, 0, index_heads, top_k, visible};
      a.query = arena.upload(random_floats(size_t{count} * index_heads * 128));
      a.frequencies = frequencies;
      a.head_weights = arena.upload(random_floats(size_t{count} * index_heads));
      a.scores = arena.take<float>(count * index_score_stride(visible));
      a.selected = selected;
      if (visible > top_k) {
        timer.add("index scores" + suffix, double(count) * visible * index_row_bytes,
                  [&](cudaStream_t s) { return score_index_rows(a, s); });
        timer.add("index choice" + suffix, double(count) * visible * 4,
                  [&](cudaStream_t s) { return select_rows(a, s); });
      }
    }
    const float* query = arena.upload(random_floats(count * width));
    const float* sinks = arena.upload(random_floats(heads));
    AttentionArguments a{rows, count, heads, 0, ratio, top_k, visible, query, sinks, frequencies, selected};
    a.scratch = arena.take<uint8_t>(attention_scratch_bytes(count, heads, ratio, top_k, visible));
    a.out = arena.take<float>(count * width);
    a.codes = arena.take<int8_t>(count * width);
    a.scales = arena.take<float>(count * width / 32);
    const double seen = 128 + (ratio == 4 ? std::min(visible, top_k) : visible);
    timer.add("attention, ratio " + std::to_string(ratio) + suffix, count * seen * attention_row_bytes,
              [&](cudaStream_t s) { return attend(a, s); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const ds4::bench::Report report(ds4::bench::read_options(argc, argv), "attention of decoding, Flash");
  const Timer timer(report);
  for (const uint32_t count : {1u, 16u}) {
    for (const uint64_t context : {2048u, 32768u, 131072u}) bench_context(timer, context, count);
  }
  return 0;
}
