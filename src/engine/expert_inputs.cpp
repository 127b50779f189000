#include "ds4/expert_inputs.hpp"

#include "base/error.hpp"
#include "engine/session_impl.hpp"

namespace ds4 {

struct ExpertInputs::Impl {
  std::shared_ptr<const EngineImpl> engine;
  std::unique_ptr<backend::ExpertInputs> sums;
};

ExpertInputs::ExpertInputs(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExpertInputs::ExpertInputs(ExpertInputs&&) noexcept = default;
ExpertInputs& ExpertInputs::operator=(ExpertInputs&&) noexcept = default;
ExpertInputs::~ExpertInputs() = default;

Result<ExpertInputSums> ExpertInputs::sums() const {
  return impl_->engine->backend->read(*impl_->sums);
}

Result<ExpertInputs> Engine::create_expert_inputs() const {
  return catch_bad_alloc("the inputs of experts", [&]() -> Result<ExpertInputs> {
    DS4_ASSIGN(auto sums, impl_->backend->create_expert_inputs());
    return ExpertInputs(std::make_unique<ExpertInputs::Impl>(ExpertInputs::Impl{impl_, std::move(sums)}));
  });
}

Result<backend::ExpertInputs*> Session::Impl::expert_inputs(ExpertInputs& inputs) const {
  if (inputs.impl_->engine == engine) return inputs.impl_->sums.get();
  return fail(ErrorCode::invalid_argument, "the sums of expert inputs are another engine's");
}

}  // namespace ds4
