// Time of the parts of a prefill chunk that are bound by memory: hyper connections, caches, embedding. The
// ceiling is a device-to-device copy, counted as bytes read plus bytes written.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "backend/cuda/hc/prefill_hyper_connection.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/prefill/prefill_caches.hpp"

namespace {

using namespace ds4::cuda;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  exit(1);
}

template <class T>
T* allocate(size_t count) {
  T* data = nullptr;
  require(cudaMalloc(reinterpret_cast<void**>(&data), count * sizeof(T)));
  return data;
}

__global__ void fill_f32(float* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = static_cast<float>((i * 2654435761u >> 8) % 2001) * 1e-3f - 1.0f;
  }
}

__global__ void fill_f16(__half* data, size_t count) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = __float2half(static_cast<float>((i * 2654435761u >> 8) % 2001) * 1e-3f - 1.0f);
  }
}

float* floats(size_t count) {
  float* data = allocate<float>(count);
  fill_f32<<<1024, 256>>>(data, count);
  return data;
}

double median_us(const std::function<void()>& work) {
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < 25; ++i) {
    require(cudaEventRecord(begin));
    work();
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float ms = 0;
    require(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(ms * 1e3);
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

double ceiling = 1;

void report(const char* name, uint32_t tokens, double bytes, const std::function<void()>& work) {
  const double us = median_us(work), rate = bytes / us * 1e-3;
  printf("%-28s %5u tokens %8.1f us %7.0f GB/s %4.0f %%\n", name, tokens, us, rate, 100 * rate / ceiling);
}

void hyper_connections(uint32_t tokens, uint32_t d) {
  const size_t n = tokens;
  PrefillStreams b{floats(n * 4 * d), floats(prefill_mix_partials(tokens, d)), floats(n * 24), tokens, d};
  float *out = floats(n * d), *norm = floats(d), *scale = floats(3), *base = floats(24);
  __half *high = allocate<__half>(n * d), *low = allocate<__half>(n * d),
         *fn = allocate<__half>(size_t{24} * 4 * d);
  fill_f16<<<256, 256>>>(fn, size_t{24} * 4 * d);
  DeviceMixer mixer{{ds4::format::TensorType::f16, 24, 4 * d, reinterpret_cast<uint8_t*>(fn)}, scale, base};
  const double streams = static_cast<double>(n) * 4 * d * 4, row = static_cast<double>(n) * d * 4;
  report("mix", tokens, streams, [&] { require(prefill_leave_and_mix(b, nullptr, &mixer, nullptr)); });
  report("leave", tokens, 2 * streams + row,
         [&] { require(prefill_leave_and_mix(b, out, nullptr, nullptr)); });
  report("leave and mix", tokens, 2 * streams + row,
         [&] { require(prefill_leave_and_mix(b, out, &mixer, nullptr)); });
  report("enter", tokens, streams + row / 2,
         [&] { require(prefill_enter(b, norm, {high, nullptr, nullptr}, nullptr)); });
  report("enter, two planes", tokens, streams + row,
         [&] { require(prefill_enter(b, norm, {high, low, nullptr}, nullptr)); });
  for (void* p :
       {(void*)b.streams, (void*)b.partial, (void*)b.weights, (void*)out, (void*)high, (void*)low, (void*)fn})
    cudaFree(p);
}

void caches(uint32_t tokens, uint32_t ratio, uint64_t position) {
  const size_t n = tokens;
  LayerCache cache;
  cache.ring = allocate<uint8_t>(size_t{ring_slots} * attention_row_bytes);
  const size_t rows = ratio == 0 ? 0 : (position + n) / ratio, pages = rows / rows_per_page + 1;
  uint8_t* packed = allocate<uint8_t>(pages * rows_per_page * attention_row_bytes);
  uint8_t* packed_index = allocate<uint8_t>(pages * rows_per_page * index_row_bytes);
  std::vector<uint8_t*> table(pages), index_table(pages);
  for (size_t p = 0; p < pages; ++p) {
    table[p] = packed + p * rows_per_page * attention_row_bytes;
    index_table[p] = packed_index + p * rows_per_page * index_row_bytes;
  }
  uint8_t** tables = allocate<uint8_t*>(2 * pages);
  require(cudaMemcpy(tables, table.data(), pages * 8, cudaMemcpyHostToDevice));
  require(cudaMemcpy(tables + pages, index_table.data(), pages * 8, cudaMemcpyHostToDevice));
  cache.pages = tables;
  cache.index_pages = tables + pages;
  cache.values = floats(131072);
  cache.scores = floats(131072);
  cache.index_values = floats(4096);
  cache.index_scores = floats(4096);
  LayerCache* device = allocate<LayerCache>(1);
  require(cudaMemcpy(device, &cache, sizeof cache, cudaMemcpyHostToDevice));
  PrefillCaches u;
  u.cache = device;
  u.position = position;
  u.tokens = tokens;
  u.ratio = ratio;
  u.frequencies = floats(32);
  u.q_low = floats(n * 1024);
  u.q_norm = floats(1024);
  u.q_rank = 1024;
  u.q_low_half = allocate<__half>(n * 1024);
  u.kv = floats(n * 512);
  u.kv_norm = floats(512);
  const CompressorJob job{floats(n * 1024), floats(n * 1024), floats(131072), floats(512)};
  u.compressor = u.index_compressor = job;
  u.rows = allocate<__half>((127 + n + rows) * 512);
  const double width = ratio == 4 ? 1024 + 256 : ratio == 128 ? 512 : 0;
  const double bytes = static_cast<double>(n) * (4096 + 2048 + 2048 + 1024 + 8 * width) +
                       static_cast<double>(rows) * (584 + 1024 + (ratio == 4 ? 68 : 0));
  char name[64];
  snprintf(name, sizeof name, "caches, ratio %u at %llu", ratio, static_cast<unsigned long long>(position));
  report(name, tokens, bytes, [&] { require(prefill_update_caches(u, nullptr)); });
}

}  // namespace

int main() {
  constexpr size_t copy_bytes = size_t{512} << 20;
  uint8_t *from = allocate<uint8_t>(copy_bytes), *to = allocate<uint8_t>(copy_bytes);
  fill_f32<<<1024, 256>>>(reinterpret_cast<float*>(from), copy_bytes / 4);
  ceiling = 2.0 * copy_bytes * 1e-3 /
            median_us([&] { require(cudaMemcpyAsync(to, from, copy_bytes, cudaMemcpyDeviceToDevice)); });
  printf("device-to-device copy: %.0f GB/s\n", ceiling);
  for (const uint32_t tokens : {4096u, 2048u, 512u, 64u}) hyper_connections(tokens, 4096);
  hyper_connections(4096, 7168);
  for (const uint32_t ratio : {0u, 4u, 128u}) {
    for (const uint64_t position : {uint64_t{0}, uint64_t{28672}}) caches(4096, ratio, position);
  }
  caches(64, 4, 28672);
  __half* table = allocate<__half>(size_t{4096} * 4096);
  fill_f16<<<1024, 256>>>(table, size_t{4096} * 4096);
  std::vector<RowInfo> rows(4096);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].token = static_cast<int32_t>(i * 7 % 4096);
  RowInfo* device_rows = allocate<RowInfo>(rows.size());
  require(cudaMemcpy(device_rows, rows.data(), rows.size() * sizeof(RowInfo), cudaMemcpyHostToDevice));
  float* streams = allocate<float>(size_t{4096} * 4 * 4096);
  report("embedding", 4096, 4096.0 * 4096 * 18, [&] {
    require(embed_tokens({ds4::format::TensorType::f16, 4096, 4096, reinterpret_cast<uint8_t*>(table)},
                         device_rows, 4096, streams, nullptr));
  });
  return 0;
}
