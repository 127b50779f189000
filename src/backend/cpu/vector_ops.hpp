// Vector kernels of the CPU backend (Highway, chosen at run time). Every reduction has one order that depends
// on the length and the instruction set only, so results do not depend on batch size or threads.
#pragma once

#include <cstddef>

namespace ds4::cpu {

/// Sum of x[i]^2 and of a[i] * b[i]; n a multiple of 16.
float sum_of_squares(const float* x, size_t n);
float dot(const float* a, const float* b, size_t n);

/// out[i] = x[i] * scale * weight[i]; weight may be null (1), out may be x.
void scale(const float* x, float scale, const float* weight, size_t n, float* out);

/// out[i] += x[i].
void add(const float* x, size_t n, float* out);

/// out[i] = sum over the 4 streams of weight[h] * x[h * width + i].
void mix_streams(const float* x, const float weight[4], size_t width, float* out);

/// x[k][i] <- post[k] * out[i] + sum over j of comb[j][k] * x[j][i], in place; comb row-major, j first.
void post_streams(float* x, const float* out, const float post[4], const float comb[16], size_t width);

/// out[i] = silu(min(gate[i], clamp)) * clamp(up[i], -clamp, clamp) * weight.
void swiglu(const float* gate, const float* up, float clamp, float weight, size_t n, float* out);

/// out[h * out_stride + t] = scale * (q row h) . (row t), for `heads` query rows and `count` key rows of
/// `dim` values. dim a multiple of 16.
void row_scores(const float* q, size_t heads, const float* rows, size_t count, size_t dim, float scale,
                float* out, size_t out_stride);

/// scores[t] <- e^(scores[t] - M), M = max(sink, max scores); returns e^(sink - M) + sum of the new values.
float softmax_with_sink(float* scores, size_t count, float sink);

/// out[h * dim + i] = (sum over t of weights[h * weight_stride + t] * rows[t * dim + i]) * factor[h].
void weighted_rows(const float* weights, size_t weight_stride, size_t heads, const float* rows, size_t count,
                   size_t dim, const float* factor, float* out);

/// out[t] = sum over h of head_weight[h] * max(0, scores[h * stride + t]), heads in ascending order. Both
/// rows are read or written up to the next multiple of 16.
void weighted_relu(const float* scores, size_t stride, size_t heads, const float* head_weight, size_t count,
                   float* out);

/// Softmax pooling, one per column: out[i] = sum_t e^(g_t[i] - max_t g[i]) k_t[i] / sum_t e^(...), over
/// `count` rows given by pointers; n a multiple of 16. Rows whose score is -infinity have weight 0.
void pool_columns(const float* const* kv, const float* const* score, size_t count, size_t n, float* out);

}  // namespace ds4::cpu
