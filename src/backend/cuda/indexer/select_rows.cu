// What: the top_k rows of largest score, ascending by row; equal scores go to the lower row.
// Layout: one block for a row of the pass.
// Preconditions: scores of visible rows; visible > top_k (other rows return at once). Score rows on 16 bytes.
// Bytes and FLOPs: four reads of 4 B a visible row, from L2: 0.5 MB for 128k tokens.
// Why this shape: exact and the same for any number of equal scores (radix_select.cuh).
#include "backend/cuda/device/launch.hpp"
#include "backend/cuda/indexer/indexer.hpp"
#include "backend/cuda/indexer/radix_select.cuh"

namespace ds4::cuda {
namespace {

constexpr int threads = 1024;

__global__ void __launch_bounds__(threads) select_kernel(IndexerArguments a, size_t stride) {
  __shared__ RadixShared shared;
  start_successor();
  wait_for_predecessor();
  const uint32_t visible = visible_rows(a.rows[blockIdx.x].position, 4);
  if (visible <= a.top_k) return;
  radix_select<threads>(ScoreKeys{a.scores + blockIdx.x * stride}, visible, a.top_k, shared,
                        a.selected + size_t{blockIdx.x} * a.top_k);
}

}  // namespace

cudaError_t select_rows(const IndexerArguments& arguments, cudaStream_t stream) {
  if (arguments.max_compressed <= arguments.top_k) return cudaSuccess;
  return launch(select_kernel, arguments.row_count, threads, 0, stream, arguments,
                index_score_stride(arguments.max_compressed));
}

}  // namespace ds4::cuda
