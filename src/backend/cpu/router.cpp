#include "backend/cpu/router.hpp"

#include <algorithm>
#include <cmath>

namespace ds4::cpu {
namespace {

float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Repeated arg-max: experts_used is small, and "first largest" is exactly the tie rule.
void select_by_score(const float* probability, const RouterSettings& settings, uint32_t* selected) {
  const auto score = [&](size_t e) { return probability[e] + settings.bias[e]; };
  for (size_t k = 0; k < settings.experts_used; ++k) {
    size_t best = settings.experts;
    for (size_t e = 0; e < settings.experts; ++e) {
      if (std::find(selected, selected + k, e) != selected + k) continue;
      if (best == settings.experts || score(e) > score(best)) best = e;
    }
    selected[k] = static_cast<uint32_t>(best);
  }
}

}  // namespace

void route(float* logits, int32_t token, const RouterSettings& settings, uint32_t* selected, float* weights) {
  for (size_t e = 0; e < settings.experts; ++e) logits[e] = std::sqrt(softplus(logits[e]));
  if (settings.table != nullptr) {
    const int32_t* row = settings.table + static_cast<size_t>(token) * settings.experts_used;
    std::copy(row, row + settings.experts_used, selected);
  } else {
    select_by_score(logits, settings, selected);
  }
  std::sort(selected, selected + settings.experts_used);
  float sum = 0;
  for (size_t k = 0; k < settings.experts_used; ++k) sum += logits[selected[k]];
  for (size_t k = 0; k < settings.experts_used; ++k) {
    weights[k] = logits[selected[k]] / std::max(sum, 6.103515625e-5f) * settings.scale;
  }
}

}  // namespace ds4::cpu
