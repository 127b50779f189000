#include "backend/cpu/matmul.hpp"

#include <algorithm>
#include <atomic>
#include <string_view>

#include "backend/cpu/f32_kernels.hpp"
#include "backend/cpu/int8_kernels.hpp"

namespace ds4::cpu {
namespace {

// Rows of a range: enough that decoded tiles are shared by all tokens, few enough that the threads end
// together.
constexpr size_t kRowQuantum = 16;
constexpr size_t kRowQuantumOneToken = 4;
constexpr size_t kRangesPerThread = 8;

}  // namespace

const char* cpu_target_name() {
  return has_avx512_vnni() ? "AVX-512 VNNI" : portable_target_name();
}

bool matmul_rows(const Matrix& w, size_t row_begin, size_t row_end, const Activations::View& x,
                 ActivationMode mode, const uint32_t* tokens, size_t count, float* out, size_t out_stride,
                 MatmulScratch& scratch) {
  if (row_begin >= row_end || count == 0) return true;
  const size_t row_bytes = w.row_bytes();
  const std::byte* rows = w.data + row_begin * row_bytes;
  if (activation_format(w.type, mode) == ActivationFormat::f32) {
    return f32_product(
        {w.type, rows, row_bytes, row_end - row_begin, w.cols, &x, tokens, count, out, out_stride, &scratch});
  }
  const Int8Product product{w.type, rows,  row_bytes, row_end - row_begin, w.cols,  &x,
                            tokens, count, out,       out_stride,          &scratch};
  return has_avx512_vnni() ? int8_product_avx512(product) : int8_product_portable(product);
}

bool matmul(ThreadPool& pool, std::span<MatmulScratch> scratch, const Matrix& w, Activations& x, float* out,
            size_t out_stride, size_t col_begin) {
  if (!x.prepare(w.type, pool)) return false;
  const Activations::View view = x.view(w.type, col_begin);
  const size_t ranges = pool.size() == 1 ? 1 : kRangesPerThread * pool.size();
  const size_t quantum = x.count() == 1 ? kRowQuantumOneToken : kRowQuantum;
  const size_t grain = std::max(quantum, w.rows / ranges / quantum * quantum);
  std::atomic<bool> ok{true};
  pool.parallel_for(w.rows, grain, [&](size_t begin, size_t end, unsigned worker) {
    if (!matmul_rows(w, begin, end, view, x.mode(), nullptr, x.count(), out + begin, out_stride,
                     scratch[worker])) {
      ok.store(false, std::memory_order_relaxed);
    }
  });
  return ok.load();
}

}  // namespace ds4::cpu
