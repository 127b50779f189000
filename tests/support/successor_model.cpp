#include "support/successor_model.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>

#include "support/tiny_model.hpp"

namespace ds4::testing {
namespace {

// Tokens of write_tiny_model(): three special ones, the bytes, the chat tokens, then fillers.
constexpr uint32_t eos = 1, think_open = 261, think_close = 262, first_piece = 264;

// Adds entry by entry the row of a Hadamard matrix that belongs to a token. Pieces have rows of their own,
// and share them with ordinary bytes only, which are never generated.
void add_token(std::span<float> row, uint64_t token, float size) {
  const uint64_t axis = 3 + token % 250;
  const float entry = size / std::sqrt(static_cast<float>(row.size()));
  for (uint64_t i = 0; i < row.size(); ++i) row[i] += std::popcount(axis & i) % 2 == 0 ? entry : -entry;
}

}  // namespace

Result<void> write_successor_model(const std::string& path, const std::vector<std::string>& reasoning,
                                   const std::vector<std::string>& answer,
                                   const std::vector<std::string>& infill) {
  TinyModelOptions options;
  options.damping = 0;
  options.filler_texts = reasoning;
  options.filler_texts.insert(options.filler_texts.end(), answer.begin(), answer.end());
  options.filler_texts.insert(options.filler_texts.end(), infill.begin(), infill.end());
  if (!infill.empty()) {
    options.special_names = {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"};
  }

  std::multimap<uint64_t, uint64_t> token_before;
  uint64_t last = think_open;
  uint64_t piece = first_piece;
  const auto follow = [&](uint64_t token) {
    token_before.emplace(token, last);
    last = token;
  };
  for (size_t i = 0; i < reasoning.size(); ++i) follow(piece++);
  follow(think_close);
  for (size_t i = 0; i < answer.size(); ++i) follow(piece++);
  follow(eos);
  if (!infill.empty()) {
    last = piece + infill.size() + options.special_names.size() - 1;
    for (size_t i = 0; i < infill.size(); ++i) follow(piece++);
    follow(eos);
  }

  options.edit_rows["token_embd.weight"] = [](uint64_t token, std::span<float> row) {
    for (float& value : row) value = 0;
    add_token(row, token, 1);
  };
  options.edit_rows["output.weight"] = [token_before](uint64_t token, std::span<float> row) {
    for (float& value : row) value = 0;
    const auto [begin, end] = token_before.equal_range(token);
    for (auto before = begin; before != end; ++before) add_token(row, before->second, 10);
  };
  return write_tiny_model(path, options);
}

}  // namespace ds4::testing
