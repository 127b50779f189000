// The CPU backend: the model behind the seam of backend/backend.hpp.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cpu/forward.hpp"
#include "ds4/error.hpp"
#include "ds4/memory.hpp"
#include "model/weights.hpp"

namespace ds4::cpu {

struct CpuOptions {
  unsigned threads = 0;                 // 0: one for each processor
  bool exact_activations = false;       // F32 activations with quantised weights too
  bool round_trips = true;              // off only to compare with references that lack them
  ForwardObserver* observer = nullptr;  // must outlive the backend
  std::vector<float> directions;        // [layers][d] for steering; empty: none
};

/// What make_cpu_backend() and its largest pass, a prefill chunk of `chunk` tokens, take.
MemoryPlan plan_cpu_memory(const model::ModelShape& shape, const model::ModelWeights& weights,
                           const model::MtpWeights* mtp, size_t chunk);

/// The weights' views must outlive the backend. `mtp` may be null.
std::unique_ptr<backend::Backend> make_cpu_backend(const model::ModelShape& shape,
                                                   const model::ModelWeights& weights,
                                                   const model::MtpWeights* mtp, const CpuOptions& options);

}  // namespace ds4::cpu
