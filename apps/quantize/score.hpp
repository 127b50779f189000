// How well a model predicts texts, and how far it is from a reference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "reference_file.hpp"
#include "score_items.hpp"

namespace ds4::quantize {

/// Sums over the scored tokens of an item, or of several.
struct ItemScore {
  std::string id;
  ItemKind kind = ItemKind::text;
  size_t given = 0;
  size_t tokens = 0;            // scored
  double nll = 0;               // sum of negative log-likelihoods
  size_t likeliest = 0;         // tokens that the model finds the likeliest
  size_t continuations = 0;     // 1 if the item is one
  size_t first_matches = 0;     // of continuations: the first token is the likeliest
  size_t greedy_prefix = 0;     // of continuations: tokens until the first that is not
  size_t continued_tokens = 0;  // of continuations: tokens
  double seconds = 0;
  // Only with a reference:
  double reference_nll = 0;
  double divergence = 0;  // sum of KL(reference || model), nats
  size_t agreements = 0;  // tokens where both have the same likeliest token
};

struct ModelScore {
  std::string path, name, backend;
  uint64_t weight_bytes = 0;
  std::vector<ItemScore> items;
  bool compared = false;  // with a reference
  double load_seconds = 0, seconds = 0;

  ItemScore total() const;
};

struct ScoreCallbacks {
  std::function<void(size_t, size_t)> progress;  // tokens done, in all
  std::function<bool()> cancelled;
};

/// Scores `items` with a session of `engine`, each from an empty state. With a `reference`, `items` are those
/// of it; with a `writer` their distributions are written. Both need the logits of every token, one step at a
/// time; without them texts are scored many tokens at once.
Result<std::vector<ItemScore>> score_items(const Engine& engine, const std::vector<ScoreItem>& items,
                                           const ReferenceFile* reference, ReferenceWriter* writer,
                                           const ScoreCallbacks& callbacks);

/// The greedy continuations of questions, at most `tokens` tokens each, up to the end of the reply.
Result<std::vector<ScoreItem>> continue_questions(const Engine& engine,
                                                  const std::vector<Question>& questions, size_t tokens,
                                                  const std::function<bool()>& cancelled);

/// KL(reference || model) of one position, in nats. What the reference does not keep counts as one outcome.
double divergence(const ReferencePosition& position, std::span<const float> logits);

}  // namespace ds4::quantize
