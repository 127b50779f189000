// Time of attention and indexer of prefill at the shape of Flash, for the last tokens of prompts of several
// lengths.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/prefill_attention.hpp"
#include "backend/cuda/indexer/prefill_indexer.hpp"
#include "cuda_timing.hpp"

namespace {

using namespace ds4::cuda;
using ds4::bench::Memory;
using ds4::bench::upload;

constexpr uint32_t heads = 64, index_heads = 64, top_k = 512, chunk = 4096;
constexpr int launches = 3;

// The tokens that a row of the table is about.
struct Stretch {
  uint64_t position;
  uint32_t tokens;
  PrefillKernel kernel;

  std::string name(const std::string& what) const {
    return what + " to " + std::to_string((position + tokens) / 1024) + "k" +
           (kernel == PrefillKernel::portable ? " portable" : "");
  }
  uint32_t compressed(uint32_t ratio) const { return visible_rows(position + tokens - 1, ratio); }
};

void bench_attention(const ds4::bench::Report& report, const Stretch& stretch, uint32_t ratio) {
  std::mt19937 random(ratio);
  PrefillAttention a;
  a.older = static_cast<uint32_t>(std::min<uint64_t>(stretch.position, 127));
  a.tokens = stretch.tokens;
  a.position = stretch.position;
  a.heads = heads;
  a.ratio = ratio;
  a.top_k = top_k;
  double seen = 0;
  std::vector<uint32_t> chosen(ratio == 4 ? size_t{stretch.tokens} * top_k : 1);
  for (uint32_t t = 0; t < stretch.tokens; ++t) {
    const uint64_t position = stretch.position + t;
    const uint32_t visible = visible_rows(position, ratio);
    const bool choose = ratio == 4 && visible > top_k;
    seen += static_cast<double>(std::min<uint64_t>(position + 1, 128) + (choose ? top_k : visible));
    if (!choose) continue;
    // One row of each of top_k equal stretches.
    for (uint32_t i = 0; i < top_k; ++i) {
      const uint64_t begin = uint64_t{visible} * i / top_k, end = uint64_t{visible} * (i + 1) / top_k;
      chosen[size_t{t} * top_k + i] = static_cast<uint32_t>(begin + random() % (end - begin));
    }
  }
  const size_t width = size_t{stretch.tokens} * heads * 512 * sizeof(__half);
  const Memory rows((size_t{a.older} + stretch.tokens + stretch.compressed(ratio)) * 512 * sizeof(__half));
  const Memory query(width), out(width), sinks(heads * sizeof(float)), frequencies(32 * sizeof(float));
  const Memory selected = upload(chosen);
  a.rows = rows.as<__half>();
  a.query = query.as<__half>();
  a.out = out.as<__half>();
  a.sinks = sinks.as<float>();
  a.frequencies = frequencies.as<float>();
  a.selected = ratio == 4 ? selected.as<uint32_t>() : nullptr;
  const double us = ds4::bench::graph_microseconds(
      launches, [&](int, cudaStream_t stream) { return prefill_attention(a, stream, stretch.kernel); });
  report.add({stretch.name("attention, ratio " + std::to_string(ratio)), us, 0, seen * heads * 2048});
}

void bench_indexer(const ds4::bench::Report& report, const Stretch& stretch) {
  const uint32_t compressed = stretch.compressed(4), tokens = stretch.tokens;
  if (compressed <= top_k) return;
  std::mt19937 random(1);
  std::vector<uint8_t> rows((size_t{compressed} / rows_per_page + 1) * rows_per_page * index_row_bytes);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<uint8_t>(i % index_row_bytes < 64 ? random() : 124 + random() % 4);
  const Memory keys = upload(rows);
  std::vector<const uint8_t*> table;
  for (size_t at = 0; at < rows.size(); at += size_t{rows_per_page} * index_row_bytes)
    table.push_back(keys.as<uint8_t>() + at);
  const Memory pages = upload(table), query(size_t{tokens} * index_heads * 128 * sizeof(float)),
               weights(size_t{tokens} * index_heads * sizeof(float)), frequencies(32 * sizeof(float)),
               selected(size_t{tokens} * top_k * sizeof(uint32_t)),
               scratch(prefill_indexer_scratch_bytes(tokens, index_heads, compressed));
  PrefillIndexer a;
  a.tokens = tokens;
  a.position = stretch.position;
  a.heads = index_heads;
  a.top_k = top_k;
  a.query = query.as<float>();
  a.head_weights = weights.as<float>();
  a.frequencies = frequencies.as<float>();
  a.pages = pages.as<const uint8_t*>();
  a.selected = selected.as<uint32_t>();
  a.scratch = scratch.as<uint8_t>();
  const auto scored = [&](uint32_t first) {
    double sum = 0;
    for (uint32_t t = first; t < tokens; ++t) {
      const uint32_t visible = visible_rows(stretch.position + t, 4);
      sum += visible > top_k ? visible : 0;
    }
    return sum;
  };
  const auto time = [&](auto&& launch) { return ds4::bench::graph_microseconds(launches, launch); };
  report.add({stretch.name("indexer"),
              time([&](int, cudaStream_t stream) { return prefill_index_rows(a, stream, stretch.kernel); }),
              0, scored(0) * index_heads * 256});

  // Its steps, over one slice.
  IndexSlice slice;
  slice.score_stride = (size_t{compressed} + 127) / 128 * 128;
  slice.tokens = static_cast<uint32_t>(
      std::min<size_t>(tokens, (size_t{32} << 20) / (slice.score_stride + 128) / 64 * 64));
  slice.first = tokens - slice.tokens;
  slice.groups = 1;
  const Memory prepared(size_t{slice.tokens} * index_heads * 128 * sizeof(uint16_t)),
      scaled(size_t{slice.tokens} * index_heads * sizeof(float)),
      scores(slice.tokens * slice.score_stride * sizeof(float));
  slice.queries = prepared.as<uint16_t>();
  slice.weights = scaled.as<float>();
  slice.scores = scores.as<float>();
  const std::string of = " of " + std::to_string(slice.tokens);
  report.add({stretch.name("  queries" + of),
              time([&](int, cudaStream_t stream) { return prepare_index_queries(a, slice, stream); }),
              6.0 * slice.tokens * index_heads * 128, 0});
  report.add({stretch.name("  scores" + of), time([&](int, cudaStream_t stream) {
                return score_index_slice(a, slice, stretch.kernel, stream);
              }),
              0, scored(slice.first) * index_heads * 256});
  report.add({stretch.name("  choice" + of),
              time([&](int, cudaStream_t stream) { return select_slice_rows(a, slice, stream); }),
              4 * scored(slice.first), 0});
}

}  // namespace

int main(int argc, char** argv) {
  const ds4::bench::Report report(ds4::bench::read_options(argc, argv),
                                  "prefill attention and indexer, Flash, 4096 tokens (2048 to 2k)");
  for (const uint64_t context : {2048u, 8192u, 32768u, 131072u}) {
    const auto tokens = static_cast<uint32_t>(std::min<uint64_t>(context, chunk));
    const Stretch best{context - tokens, tokens, PrefillKernel::best};
    for (const uint32_t ratio : {0u, 4u, 128u}) bench_attention(report, best, ratio);
    bench_indexer(report, best);
    if (context != 32768) continue;
    const Stretch portable{context - tokens, tokens, PrefillKernel::portable};
    bench_attention(report, portable, 4);
    bench_indexer(report, portable);
  }
  return 0;
}
