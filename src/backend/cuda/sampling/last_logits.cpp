#include "backend/cuda/sampling/last_logits.hpp"

#include <vector>

#include "backend/cuda/device_types.hpp"
#include "backend/cuda/sampling/argmax.hpp"
#include "backend/cuda/sampling/device_draw.hpp"
#include "sampling/draw.hpp"

namespace ds4::cuda {

LastLogits::LastLogits(uint32_t vocabulary, cudaStream_t stream)
    : vocabulary_(vocabulary),
      stream_(stream),
      pool_(std::make_shared<PagePool>(vocabulary * sizeof(float))),
      scratch_(argmax_scratch_bytes(max_rows, vocabulary), "scratch of summaries"),
      draw_scratch_(draw_scratch_bytes(vocabulary), "scratch of the choice"),
      summaries_(max_rows, "summaries of logits"),
      drawn_(1, "drawn token") {
  check(prepare_argmax_scratch(scratch_.data(), stream), "scratch of summaries");
  check(prepare_draw_scratch(draw_scratch_.data(), vocabulary, stream), "scratch of the choice");
}

uint64_t LastLogits::initial_bytes(uint32_t vocabulary) {
  return PagePool(vocabulary * sizeof(float)).slab_bytes();
}

void LastLogits::keep(const float* logits, std::span<KeptLogits* const> kept) {
  ArgmaxArguments arguments;
  arguments.logits = logits;
  arguments.row_count = static_cast<uint32_t>(kept.size());
  arguments.vocabulary = vocabulary_;
  arguments.scratch = scratch_.data();
  arguments.summaries = summaries_.data();
  for (size_t r = 0; r < kept.size(); ++r) {
    kept[r]->values.reset();  // unless an image shares it, the page is taken again
    kept[r]->values = pool_->take();
    kept[r]->bytes = pool_->page_bytes();
    arguments.copies[r] = reinterpret_cast<float*>(kept[r]->values.get());
  }
  check(argmax(arguments, stream_), "argmax");
  check(cudaStreamSynchronize(stream_), "pass");
  for (size_t r = 0; r < kept.size(); ++r) kept[r]->summary = summaries_[r];
}

void LastLogits::keep(std::span<const float> logits, KeptLogits& kept) {
  kept.values = pool_->take();
  kept.bytes = pool_->page_bytes();
  check(
      cudaMemcpyAsync(kept.values.get(), logits.data(), logits.size_bytes(), cudaMemcpyHostToDevice, stream_),
      "logits");
  check(cudaStreamSynchronize(stream_), "logits");
  kept.summary = sampling::summarize(logits);
}

void LastLogits::fetch(const KeptLogits& kept, float* out) const {
  check(cudaMemcpyAsync(out, kept.data(), vocabulary_ * sizeof(float), cudaMemcpyDeviceToHost, stream_),
        "logits");
  check(cudaStreamSynchronize(stream_), "logits");
}

Token LastLogits::draw(const KeptLogits& kept, const SamplingParams& params, float uniform) {
  const sampling::DrawRule rule = sampling::normalized(params);
  DrawArguments arguments;
  arguments.logits = kept.data();
  arguments.vocabulary = vocabulary_;
  arguments.softmax = sampling::make_softmax(kept.summary.maximum, rule);
  arguments.top_k = rule.top_k;
  arguments.top_p = rule.top_p;
  arguments.uniform = uniform;
  arguments.scratch = draw_scratch_.data();
  arguments.token = drawn_.data();
  check(cuda::draw(arguments, stream_), "draw");
  check(cudaStreamSynchronize(stream_), "draw");
  if (drawn_[0] != draw_undecided) return drawn_[0];
  std::vector<float> logits(vocabulary_);
  fetch(kept, logits.data());
  return sampling::draw(logits, params, uniform);
}

}  // namespace ds4::cuda
