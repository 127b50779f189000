// Parts of a prefill chunk that are bound by memory: hyper connections, caches, embedding. A copy from device
// to device, counted as bytes read plus bytes written, shows what reading and writing together can reach.
#include <cuda_fp16.h>

#include <functional>
#include <string>
#include <vector>

#include "backend/cuda/hc/prefill_hyper_connection.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/prefill/prefill_caches.hpp"
#include "cuda_timing.hpp"

namespace {

using namespace ds4::cuda;
using ds4::bench::Arena;
using ds4::bench::counted;
using ds4::bench::Report;
using ds4::format::TensorType;

void measure(const Report& report, const std::string& name, double bytes,
             const std::function<cudaError_t(cudaStream_t)>& launch) {
  constexpr int launches = 5;
  const double microseconds =
      ds4::bench::graph_microseconds(launches, [&](int, cudaStream_t stream) { return launch(stream); });
  report.add({name, microseconds, bytes, 0});
}

void copy(const Report& report) {
  constexpr size_t bytes = size_t{512} << 20;
  const ds4::bench::Memory from(bytes), to(bytes);
  measure(report, "copy of 512 MiB", 2.0 * bytes, [&](cudaStream_t stream) {
    return cudaMemcpyAsync(to.as<void>(), from.as<void>(), bytes, cudaMemcpyDeviceToDevice, stream);
  });
}

void hyper_connections(const Report& report, uint32_t tokens, uint32_t d) {
  Arena arena;
  const size_t n = tokens;
  const PrefillStreams b{arena.take<float>(n * 4 * d), arena.take<float>(prefill_mix_partials(tokens, d)),
                         arena.take<float>(n * 24), tokens, d};
  const auto *out = arena.take<float>(n * d), *norm = arena.take<float>(d);
  auto *high = arena.take<__half>(n * d), *low = arena.take<__half>(n * d);
  DeviceMixer mixer;
  mixer.fn = {TensorType::f16, 24, 4 * d, arena.take<uint8_t>(size_t{24} * 4 * d * sizeof(__half))};
  mixer.scale = arena.take<float>(3);
  mixer.base = arena.take<float>(24);
  const double streams = static_cast<double>(n) * 4 * d * 4, row = static_cast<double>(n) * d * 4;
  const std::string suffix = ", width " + std::to_string(d) + ", " + counted(tokens, "token");
  measure(report, "mix" + suffix, streams,
          [&](cudaStream_t stream) { return prefill_leave_and_mix(b, nullptr, &mixer, stream); });
  measure(report, "leave" + suffix, 2 * streams + row,
          [&](cudaStream_t stream) { return prefill_leave_and_mix(b, out, nullptr, stream); });
  measure(report, "leave and mix" + suffix, 2 * streams + row,
          [&](cudaStream_t stream) { return prefill_leave_and_mix(b, out, &mixer, stream); });
  measure(report, "enter" + suffix, streams + row / 2,
          [&](cudaStream_t stream) { return prefill_enter(b, norm, {high, nullptr, nullptr}, stream); });
  measure(report, "enter, two planes" + suffix, streams + row,
          [&](cudaStream_t stream) { return prefill_enter(b, norm, {high, low, nullptr}, stream); });
}

uint8_t** page_table(Arena& arena, size_t pages, size_t row_bytes) {
  auto* data = arena.take<uint8_t>(pages * rows_per_page * row_bytes);
  std::vector<uint8_t*> table(pages);
  for (size_t p = 0; p < pages; ++p) table[p] = data + p * rows_per_page * row_bytes;
  return arena.upload(table);
}

void caches(const Report& report, uint32_t tokens, uint32_t ratio, uint64_t position) {
  Arena arena;
  const size_t n = tokens, rows = ratio == 0 ? 0 : (position + n) / ratio, pages = rows / rows_per_page + 1;
  const size_t slots = ratio == 0 ? 0 : static_cast<size_t>(compressor_slots(static_cast<int>(ratio)));
  LayerCache cache;
  cache.ring = arena.take<uint8_t>(size_t{ring_slots} * attention_row_bytes);
  cache.pages = page_table(arena, pages, attention_row_bytes);
  cache.index_pages = page_table(arena, pages, index_row_bytes);
  cache.values = arena.take<float>(slots * 1024);
  cache.scores = arena.take<float>(slots * 1024);
  cache.index_values = arena.take<float>(slots * 256);
  cache.index_scores = arena.take<float>(slots * 256);
  PrefillCaches u;
  u.cache = arena.upload(std::vector<LayerCache>{cache});
  u.position = position;
  u.tokens = tokens;
  u.ratio = ratio;
  u.frequencies = arena.take<float>(32);
  u.q_low = arena.take<float>(n * 1024);
  u.q_norm = arena.take<float>(1024);
  u.q_rank = 1024;
  u.q_low_half = arena.take<__half>(n * 1024);
  u.kv = arena.take<float>(n * 512);
  u.kv_norm = arena.take<float>(512);
  const auto compressor = [&](size_t width, size_t dim) {
    return CompressorJob{arena.take<float>(n * width), arena.take<float>(n * width),
                         arena.take<float>(ratio * width), arena.take<float>(dim)};
  };
  u.compressor = compressor(1024, 512);
  u.index_compressor = compressor(256, 128);
  u.rows = arena.take<__half>((prefill_older_rows(position) + n + rows) * 512);
  const double width = ratio == 4 ? 1024 + 256 : ratio == 128 ? 512 : 0;
  const double bytes = static_cast<double>(n) * (4096 + 2048 + 2048 + 1024 + 8 * width) +
                       static_cast<double>(rows) * (584 + 1024 + (ratio == 4 ? 68 : 0));
  measure(report,
          "caches, ratio " + std::to_string(ratio) + " at " + std::to_string(position) + ", " +
              counted(tokens, "token"),
          bytes, [&](cudaStream_t stream) { return prefill_update_caches(u, stream); });
}

void embedding(const Report& report) {
  constexpr uint32_t tokens = 4096, width = 4096, vocabulary = 4096;
  Arena arena;
  const DeviceMatrix table{TensorType::f16, vocabulary, width,
                           arena.take<uint8_t>(size_t{vocabulary} * width * sizeof(__half))};
  std::vector<RowInfo> infos(tokens);
  for (uint32_t i = 0; i < tokens; ++i) infos[i].token = static_cast<int32_t>(i * 7 % vocabulary);
  const RowInfo* rows = arena.upload(infos);
  auto* streams = arena.take<float>(size_t{tokens} * 4 * width);
  measure(report, "embedding, " + counted(tokens, "token"), double{tokens} * width * (2 + 4 * 4),
          [&](cudaStream_t stream) { return embed_tokens(table, rows, tokens, streams, stream); });
}

}  // namespace

int main(int argc, char** argv) {
  const Report report(ds4::bench::read_options(argc, argv),
                      "memory-bound parts of prefill, Flash (and hyper connections of Pro)");
  copy(report);
  for (const uint32_t tokens : {4096u, 2048u, 512u, 64u}) hyper_connections(report, tokens, 4096);
  hyper_connections(report, 4096, 7168);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{28672}}) caches(report, 4096, ratio, position);
  }
  caches(report, 64, 4, 28672);
  embedding(report);
  return 0;
}
