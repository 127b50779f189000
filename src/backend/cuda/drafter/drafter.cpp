#include "backend/cuda/drafter/drafter.hpp"

#include <algorithm>

#include "backend/cuda/gemv/gemv.hpp"
#include "backend/cuda/prefill/embed.hpp"
#include "backend/cuda/sampling/argmax.hpp"
#include "base/error.hpp"

namespace ds4::cuda {
namespace {

constexpr size_t parts = 5;  // of a pair: the embedding and four streams

}  // namespace

Drafter::Drafter(const model::ModelShape& shape, const DeviceWeights& weights, cudaStream_t stream)
    : shape_(shape),
      weights_(weights),
      stream_(stream),
      pass_(shape, weights, stream),
      embedding_(max_draft_pairs * 4 * shape.width, "the drafter's embeddings"),
      values_(max_draft_pairs * parts * shape.width, "the drafter's inputs"),
      codes_(values_.size(), "the drafter's inputs"),
      scales_(values_.size() / 32, "the drafter's inputs"),
      projected_(values_.size(), "the drafter's projections"),
      before_(max_draft_pairs, "the drafter's pairs"),
      host_before_(max_draft_pairs, "the drafter's pairs"),
      argmax_scratch_(argmax_scratch_bytes(1, shape.vocabulary), "scratch of a draft"),
      summary_(1, "a draft"),
      host_summary_(1, "a draft") {
  check(prepare_argmax_scratch(argmax_scratch_.data(), stream), "scratch of a draft");
}

uint64_t Drafter::scratch_bytes(const model::ModelShape& shape) {
  const uint64_t values = max_draft_pairs * parts * shape.width;
  return Pass::scratch_bytes(shape) + values * (2 * sizeof(float) + 1) + values / 8 +
         max_draft_pairs * 4 * shape.width * sizeof(float) + argmax_scratch_bytes(1, shape.vocabulary);
}

// The pairs' streams Z into the pass.
void Drafter::enter(std::span<const DraftPair> pairs) {
  const DeviceDrafter& drafter = *weights_.drafter;
  const auto rows = static_cast<int>(pairs.size());
  const uint32_t d = shape_.width;
  check(cudaStreamSynchronize(stream_),
        "the drafter's pass before");  // the pinned pointers are read by its copy
  std::vector<RowInfo> infos;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const DraftPair& pair = pairs[i];
    const bool follows = i > 0 && pairs[i - 1].layers == pair.layers;
    infos.push_back({pair.next, follows ? infos.back().place + 1 : 0, pair.position, 1, 0, pair.layers, {}});
    host_before_[i] = pair.before;
  }
  for (size_t i = pairs.size(); i-- > 0;) {
    const bool continued = i + 1 < pairs.size() && infos[i + 1].place > 0;
    infos[i].rows_of_sequence = continued ? infos[i + 1].rows_of_sequence : infos[i].place + 1;
  }
  pass_.set_rows(infos);
  check(cudaMemcpyAsync(static_cast<void*>(before_.data()), static_cast<const void*>(host_before_.data()),
                        pairs.size() * sizeof(float*), cudaMemcpyHostToDevice, stream_),
        "the drafter's pairs");
  check(
      embed_tokens(weights_.embedding, pass_.rows(), static_cast<uint32_t>(rows), embedding_.data(), stream_),
      "embed_tokens");
  check(draft_inputs({before_.data(), embedding_.data(), drafter.embedding_norm, drafter.hidden_norm,
                      values_.data(), codes_.data(), scales_.data(), d},
                     rows, stream_),
        "draft_inputs");
  const auto multiply = [&](const DeviceMatrix& w, size_t first, size_t count) {
    for (size_t done = 0; done < count; done += max_rows) {
      const size_t at = (first + done) * d, n = std::min<size_t>(max_rows, count - done);
      GemvJobs jobs;
      jobs.job[jobs.count++] = {w,
                                {values_.data() + at, codes_.data() + at, scales_.data() + at / 32, d},
                                projected_.data() + at,
                                d,
                                0,
                                0};
      check(gemv(jobs, static_cast<int>(n), stream_), "the drafter's projections");
    }
  };
  multiply(drafter.embedding_proj, 0, pairs.size());
  multiply(drafter.hidden_proj, pairs.size(), 4 * pairs.size());
  check(draft_streams(projected_.data(), projected_.data() + pairs.size() * d, pass_.streams(), rows, d,
                      stream_),
        "draft_streams");
}

void Drafter::seed(std::span<const DraftPair> pairs) {
  enter(pairs);
  pass_.store_kv_rows(weights_.drafter->layer, shape_.layers, static_cast<int>(pairs.size()));
}

Result<std::vector<backend::Draft>> Drafter::draft(const DraftPair& first,
                                                   const backend::DraftRequest& request) {
  const DeviceDrafter& drafter = *weights_.drafter;
  std::vector<backend::Draft> drafts;
  DraftPair pair = first;
  for (size_t i = 0; i < request.depth; ++i) {
    enter({&pair, 1});
    pass_.run_layer(drafter.layer, shape_.layers, drafter.hc_head, 1);
    const float* logits = pass_.logits(drafter.hc_head, drafter.norm, 0, 1);
    ArgmaxArguments arguments;
    arguments.logits = logits;
    arguments.row_count = 1;
    arguments.vocabulary = shape_.vocabulary;
    arguments.scratch = argmax_scratch_.data();
    arguments.summaries = &summary_.data()->logits;
    check(argmax(arguments, stream_), "argmax");
    check(second_best(logits, shape_.vocabulary, summary_.data(), stream_), "second_best");
    check(cudaMemcpyAsync(host_summary_.data(), summary_.data(), sizeof(DraftSummary), cudaMemcpyDeviceToHost,
                          stream_),
          "a draft");
    backend::Draft draft;
    if (request.logits) {
      draft.logits.resize(shape_.vocabulary);
      check(cudaMemcpyAsync(draft.logits.data(), logits, shape_.vocabulary * sizeof(float),
                            cudaMemcpyDeviceToHost, stream_),
            "a draft");
    }
    check(cudaStreamSynchronize(stream_), "a draft");
    const DraftSummary& summary = host_summary_[0];
    if (summary.logits.has_nan || summary.logits.best < 0) {
      return fail(ErrorCode::not_finite, "the drafter (MTP) computed {} instead of logits",
                  summary.logits.has_nan ? "NaN" : "no finite value");
    }
    draft.token = summary.logits.best;
    draft.margin = summary.logits.maximum - summary.second;
    if (i > 0 && draft.margin < request.min_margin) break;
    pair = {pass_.streams(), draft.token, pair.position + 1, pair.layers};
    drafts.push_back(std::move(draft));
  }
  return drafts;
}

}  // namespace ds4::cuda
