// Times the attention-side kernels at the shape of Flash: microseconds with caches of the L2 warm (launches
// back to back) and cold (128 MB written in between), bytes of KV rows over the cold time.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/attention.hpp"
#include "backend/cuda/indexer/indexer.hpp"
#include "backend/cuda/sampling/argmax.hpp"

namespace {

using namespace ds4::cuda;

constexpr uint32_t heads = 64, index_heads = 64, top_k = 512, vocabulary = 129280;
constexpr int launches = 20;
constexpr size_t flush_bytes = size_t{128} << 20;

void require(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

// Never freed: the program ends soon.
template <class T>
T* upload(const std::vector<T>& values) {
  T* data = nullptr;
  require(cudaMalloc(reinterpret_cast<void**>(&data), values.size() * sizeof(T)));
  require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

template <class T>
T* reserve(size_t count) {
  return upload(std::vector<T>(count));
}

std::vector<float> random_floats(size_t count) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// Random codes, scales near 1.
std::vector<uint8_t> random_rows(size_t count, size_t row_bytes, size_t exponents, size_t exponent_count) {
  static std::mt19937 random(2);
  std::vector<uint8_t> rows(count * row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t at = i % row_bytes;
    const bool exponent = at >= exponents && at < exponents + exponent_count;
    // 0xbb keeps F16 finite and E4M3 off NaN.
    rows[i] = exponent ? static_cast<uint8_t>(120 + random() % 4) : static_cast<uint8_t>(random() & 0xbb);
  }
  return rows;
}

uint8_t** page_table(size_t rows, size_t row_bytes, size_t exponents, size_t exponent_count) {
  const std::vector<uint8_t> page = random_rows(rows_per_page, row_bytes, exponents, exponent_count);
  std::vector<uint8_t*> pages;
  for (size_t i = 0; i * rows_per_page < rows; ++i) pages.push_back(upload(page));
  return pages.empty() ? nullptr : upload(pages);
}

const LayerCache* make_cache(uint64_t position, uint32_t ratio) {
  LayerCache cache;
  cache.ring = upload(random_rows(ring_slots, attention_row_bytes, 448, 8));
  cache.pages = page_table(visible_rows(position, ratio), attention_row_bytes, 448, 8);
  if (ratio == 4) cache.index_pages = page_table(visible_rows(position, 4), index_row_bytes, 64, 4);
  return upload(std::vector<LayerCache>{cache});
}

// Microseconds of one run of the graph that `record` fills.
double time_graph(cudaStream_t stream, const std::function<void()>& record) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  record();
  require(cudaStreamEndCapture(stream, &graph));
  require(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t start, stop;
  require(cudaEventCreate(&start));
  require(cudaEventCreate(&stop));
  double best = 1e30;
  for (int i = 0; i < 8; ++i) {
    require(cudaEventRecord(start, stream));
    require(cudaGraphLaunch(executable, stream));
    require(cudaEventRecord(stop, stream));
    require(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, start, stop));
    if (milliseconds * 1e3 < best) best = milliseconds * 1e3;
  }
  require(cudaGraphExecDestroy(executable));
  require(cudaGraphDestroy(graph));
  return best;
}

struct Timer {
  cudaStream_t stream;
  uint8_t* flush;

  void report(const std::string& name, double bytes,
              const std::function<cudaError_t(cudaStream_t)>& launch) const {
    const double warm = time_graph(stream, [&] {
      for (int i = 0; i < launches; ++i) require(launch(stream));
    });
    const auto flushed = [&](bool with_kernel) {
      return time_graph(stream, [&] {
        for (int i = 0; i < launches; ++i) {
          require(cudaMemsetAsync(flush, i, flush_bytes, stream));
          if (with_kernel) require(launch(stream));
        }
      });
    };
    const double cold = (flushed(true) - flushed(false)) / launches;
    std::printf("%-36s warm %8.2f us  cold %8.2f us  %8.1f MB  %7.0f GB/s\n", name.c_str(), warm / launches,
                cold, bytes / 1e6, bytes / cold / 1e3);
  }
};

void bench_context(const Timer& timer, uint64_t context, uint32_t count) {
  const uint64_t position = context - 1;
  std::printf("context %llu, %u rows\n", static_cast<unsigned long long>(context), count);
  const size_t width = size_t{heads} * 512;
  float* query = upload(random_floats(count * width));
  float* index_query = upload(random_floats(size_t{count} * index_heads * 128));
  const float* frequencies = upload(std::vector<float>(32, 0.01f));
  const float* sinks = upload(random_floats(heads));
  uint32_t* selected = nullptr;
  for (uint32_t ratio : {0u, 4u, 128u}) {
    const uint32_t visible = visible_rows(position, ratio);
    std::vector<RowInfo> infos(count);
    for (RowInfo& info : infos) {
      info.position = position;
      info.layers = make_cache(position, ratio);  // every row its own sequence
    }
    const RowInfo* rows = upload(infos);
    const std::string suffix = " ratio " + std::to_string(ratio);
    if (ratio == 4) {
      IndexerArguments a{rows, count, 0, index_heads, top_k, visible};
      a.query = index_query;
      a.frequencies = frequencies;
      a.head_weights = upload(random_floats(size_t{count} * index_heads));
      a.scores = reserve<float>(count * index_score_stride(visible));
      selected = reserve<uint32_t>(size_t{count} * top_k);
      a.selected = selected;
      if (visible > top_k) {
        timer.report("index scores", double(count) * visible * index_row_bytes,
                     [&](cudaStream_t s) { return score_index_rows(a, s); });
        timer.report("selection", double(count) * visible * 4,
                     [&](cudaStream_t s) { return select_rows(a, s); });
      }
    }
    AttentionArguments a{rows, count, heads, 0, ratio, top_k, visible, query, sinks, frequencies, selected};
    a.scratch = reserve<uint8_t>(attention_scratch_bytes(count, heads, ratio, top_k, visible));
    a.out = reserve<float>(count * width);
    a.codes = reserve<int8_t>(count * width);
    a.scales = reserve<float>(count * width / 32);
    const double seen = 128 + (ratio == 4 && visible > top_k ? top_k : visible);
    timer.report("attention" + suffix, count * seen * attention_row_bytes,
                 [&](cudaStream_t s) { return attend(a, s); });
  }
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device: nothing measured");
    return 0;
  }
  Timer timer{};
  require(cudaStreamCreate(&timer.stream));
  timer.flush = reserve<uint8_t>(flush_bytes);
  for (uint32_t count : {1u, 16u}) {
    for (uint64_t context : {2048u, 32768u, 131072u}) bench_context(timer, context, count);
    const float* logits = upload(random_floats(size_t{count} * vocabulary));
    void* scratch = reserve<uint8_t>(argmax_scratch_bytes(count, vocabulary));
    require(prepare_argmax_scratch(scratch, timer.stream));
    ArgmaxArguments arguments{logits, count,   vocabulary,
                              {},     scratch, reserve<ds4::sampling::LogitSummary>(count)};
    for (uint32_t r = 0; r < count; ++r) arguments.copies[r] = reserve<float>(vocabulary);
    timer.report("argmax", 8.0 * count * vocabulary, [&](cudaStream_t s) { return argmax(arguments, s); });
  }
  return 0;
}
