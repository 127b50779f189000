// Which experts a token goes to, and with what weight (docs/model.md §8.1).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds4::cpu {

/// How one layer routes.
struct RouterSettings {
  size_t experts = 0;
  size_t experts_used = 0;
  float scale = 1;
  const float* bias = nullptr;     // [experts], added for the selection only; layers routed by score
  const int32_t* table = nullptr;  // [vocabulary][experts_used]; layers routed by token id
};

/// logits [experts] are overwritten by the router probabilities. Selected experts come in ascending order
/// with their weights. Ties go to the lower expert.
void route(float* logits, int32_t token, const RouterSettings& settings, uint32_t* selected, float* weights);

}  // namespace ds4::cpu
