#include "support/alphabet_model.hpp"

#include <bit>
#include <cmath>
#include <span>

#include "support/tiny_model.hpp"

namespace ds4::testing {
namespace {

constexpr uint32_t attention_layer = 1, feed_forward_layer = 4;  // ratios 0 and 4

// Tokens of write_tiny_model(): three special ones, then the bytes, then the chat tokens.
constexpr uint32_t eos = 1, bang = 3 + '!', first_letter = 3 + 'a', last_letter = 3 + 'j', think_end = 262;

// Entry i of the unit vector k of an orthonormal set, a row of a Hadamard matrix.
float axis(uint32_t k, uint64_t i, size_t width) {
  const float size = 1.0f / std::sqrt(static_cast<float>(width));
  return std::popcount(k & i) % 2 == 0 ? size : -size;
}

constexpr uint32_t shared_axis = 1;  // in the embedding of every token
constexpr uint32_t shout_axis = 2;   // the direction

uint32_t token_axis(uint64_t token) {
  return 3 + static_cast<uint32_t>(token % 250);
}

void add(std::span<float> row, float factor, uint32_t k) {
  for (size_t i = 0; i < row.size(); ++i) row[i] += factor * axis(k, i, row.size());
}

void clear(std::span<float> row) {
  for (float& value : row) value = 0;
}

// The row of the output for a token: what it looks for in the streams.
void edit_output_row(uint64_t token, std::span<float> row) {
  constexpr float gain = 10;
  clear(row);
  if (token == bang) add(row, gain, shout_axis);
  if (token == eos) add(row, gain, token_axis(last_letter));
  if (token < first_letter || token > last_letter) return;
  if (token > first_letter) return add(row, gain, token_axis(token - 1));
  add(row, gain, token_axis(think_end));
  add(row, gain, token_axis(bang));
}

// First element of the row i of a matrix: times what the first column is multiplied by, the direction.
void shout(float length, uint64_t i, std::span<float> row, size_t width) {
  row[0] = length * axis(shout_axis, i, width);
}

// The first dimension of every key/value row is large and positive; the first of what attention projects
// down is that of the first head.
void shout_from_attention(const std::string& layer, size_t width, TinyModelOptions& options) {
  options.edit_rows[layer + "attn_kv.weight"] = [](uint64_t i, std::span<float> row) {
    if (i == 0) add(row, 8, shared_axis);
  };
  options.edit_rows[layer + "attn_output_a.weight"] = [](uint64_t i, std::span<float> row) {
    if (i != 0) return;
    clear(row);
    row[0] = 1;
  };
  options.edit_rows[layer + "attn_output_b.weight"] = [width](uint64_t i, std::span<float> row) {
    shout(1, i, row, width);
  };
}

// The first unit of the shared expert is at both its clamps for every token: 10 silu(10) = 100.
void shout_from_experts(const std::string& layer, size_t width, TinyModelOptions& options) {
  const auto see_shared_axis = [](uint64_t i, std::span<float> row) {
    if (i == 0) add(row, 4, shared_axis);
  };
  options.edit_rows[layer + "ffn_gate_shexp.weight"] = see_shared_axis;
  options.edit_rows[layer + "ffn_up_shexp.weight"] = see_shared_axis;
  options.edit_rows[layer + "ffn_down_shexp.weight"] = [width](uint64_t i, std::span<float> row) {
    shout(0.08f, i, row, width);
  };
}

}  // namespace

model::ModelShape alphabet_shape() {
  return tiny_shape();
}

Result<void> write_alphabet_model(const std::string& path, Component shouting) {
  TinyModelOptions options;
  options.shape = alphabet_shape();
  options.damping = 0.02f;
  options.edit_rows["token_embd.weight"] = [](uint64_t token, std::span<float> row) {
    clear(row);
    add(row, 2, shared_axis);
    add(row, 1, token_axis(token));
  };
  options.edit_rows["output.weight"] = edit_output_row;
  if (shouting == Component::attention) {
    shout_from_attention("blk.1.", options.shape.width, options);
  } else {
    shout_from_experts("blk.4.", options.shape.width, options);
  }
  return write_tiny_model(path, options);
}

std::vector<float> alphabet_directions(Component shouting) {
  const model::ModelShape shape = alphabet_shape();
  std::vector<float> values(size_t{shape.layers} * shape.width);
  const size_t layer = shouting == Component::attention ? attention_layer : feed_forward_layer;
  for (size_t i = 0; i < shape.width; ++i) values[layer * shape.width + i] = axis(shout_axis, i, shape.width);
  return values;
}

}  // namespace ds4::testing
