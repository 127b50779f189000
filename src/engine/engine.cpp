#include "ds4/engine.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "backend/cpu/cpu_backend.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "engine/engine_impl.hpp"
#include "engine/fingerprint.hpp"
#include "engine/session_impl.hpp"
#include "model/shape.hpp"
#include "model/weights.hpp"
#include "text/gguf_tokenizer.hpp"

namespace ds4 {
namespace {

constexpr uint32_t max_prefill_chunk = 65536;

// Reads one byte of every page, so that later accesses find the file in memory.
void warm(const format::GgufFile& file, const std::function<void(uint64_t, uint64_t)>& progress) {
  constexpr uint64_t page_bytes = 4096, report_bytes = 64ull << 20;
  uint64_t total = 0, done = 0, reported = 0;
  for (const format::GgufTensor& tensor : file.tensors()) {
    if (model::is_weight(tensor)) total += tensor.size_bytes;
  }
  volatile unsigned char sink = 0;
  for (const format::GgufTensor& tensor : file.tensors()) {
    if (!model::is_weight(tensor)) continue;
    for (uint64_t i = 0; i < tensor.size_bytes; i += page_bytes) {
      sink = static_cast<unsigned char>(tensor.data[i]);
      if (progress && done + i >= reported + report_bytes) progress(reported = done + i, total);
    }
    done += tensor.size_bytes;
  }
  static_cast<void>(sink);
  if (progress) progress(total, total);
}

ModelInfo describe(const model::ModelShape& shape, const format::GgufFile& file,
                   const backend::BackendInfo& backend) {
  ModelInfo info;
  info.name = shape.name;
  info.variant = model::variant_name(shape.variant);
  info.backend = backend.name;
  info.layers = shape.layers;
  info.width = shape.width;
  info.heads = shape.heads;
  info.experts = shape.experts;
  info.experts_used = shape.experts_used;
  info.vocabulary = shape.vocabulary;
  info.max_context = shape.max_context;
  for (const format::GgufTensor& tensor : file.tensors()) {
    if (model::is_weight(tensor)) info.weight_bytes += tensor.size_bytes;
  }
  info.state_bytes_per_token = backend.state_bytes_per_token;
  info.drafter = backend.drafter;
  return info;
}

Result<std::unique_ptr<backend::Backend>> make_backend(const model::ModelShape& shape,
                                                       const model::ModelWeights& weights,
                                                       const model::MtpWeights* mtp,
                                                       const std::vector<float>& directions,
                                                       const EngineOptions& options) {
  const bool automatic = options.backend == BackendChoice::automatic;
  // Exact activations are a property of the CPU's kernels.
  if (options.backend == BackendChoice::cuda && options.exact_activations) {
    return fail(ErrorCode::unsupported,
                "the CUDA backend always rounds activations to 8 bits; exact ones need the CPU");
  }
  if (options.backend == BackendChoice::cuda ||
      (automatic && !options.exact_activations && cuda::available(nullptr))) {
    cuda::CudaOptions cuda;
    cuda.on_load_progress = options.on_load_progress;
    cuda.directions = directions;
    auto gpu = cuda::make_cuda_backend(shape, weights, mtp, cuda);
    if (gpu || !automatic) return gpu;
    if (options.on_notice) options.on_notice(gpu.error().message + "; computing on the CPU");
  }
  cpu::CpuOptions cpu;
  cpu.threads = options.threads;
  cpu.exact_activations = options.exact_activations;
  cpu.directions = directions;
  return cpu::make_cpu_backend(shape, weights, mtp, cpu);
}

// The MTP block, from a file of its own or the model's.
struct LoadedDrafter {
  std::optional<format::GgufFile> file;
  std::optional<model::MtpWeights> weights;

  const model::MtpWeights* pointer() const { return weights ? &*weights : nullptr; }
};

Result<LoadedDrafter> load_drafter(const EngineOptions& options, const format::GgufFile& model_file,
                                   const model::ModelShape& shape) {
  LoadedDrafter drafter;
  if (!options.mtp_path.empty()) {
    DS4_ASSIGN(drafter.file, format::GgufFile::open(options.mtp_path));
    if (!model::has_mtp(*drafter.file)) {
      return fail(ErrorCode::format, "{}: there is no drafter in it (no tensor \"mtp.0.*\")",
                  options.mtp_path);
    }
  }
  if (drafter.file || model::has_mtp(model_file)) {
    DS4_ASSIGN(drafter.weights, model::bind_mtp(drafter.file ? *drafter.file : model_file, shape));
  }
  return drafter;
}

// The device that make_backend() would take first.
Result<MemoryPlan> plan_backend(const model::ModelShape& shape, const model::ModelWeights& weights,
                                const model::MtpWeights* mtp, const EngineOptions& options) {
  const bool automatic = options.backend == BackendChoice::automatic;
  if (options.backend == BackendChoice::cuda ||
      (automatic && !options.exact_activations && cuda::available(nullptr))) {
    return cuda::plan_cuda_memory(shape, weights, mtp);
  }
  return cpu::plan_cpu_memory(shape, weights, mtp, options.prefill_chunk);
}

Result<MemoryPlan> plan(const EngineOptions& options) {
  DS4_ASSIGN(const auto file, format::GgufFile::open(options.model_path));
  std::string notice;
  DS4_ASSIGN(const auto shape, model::read_shape(file, &notice));
  DS4_ASSIGN(const auto weights, model::bind_weights(file, shape));
  DS4_ASSIGN(const auto drafter, load_drafter(options, file, shape));
  DS4_ASSIGN(MemoryPlan plan, plan_backend(shape, weights, drafter.pointer(), options));
  // An anchor holds its own window and open compressor windows and shares the rest.
  // Each with its logits; one row more is that of the session itself.
  plan.anchor_bytes =
      Anchors::max_count * plan.session_bytes + (Anchors::max_count + 1) * shape.vocabulary * sizeof(float);
  return plan;
}

Result<EngineImpl> load(const EngineOptions& options, const BackendWrapper& wrap) {
  if (options.prefill_chunk == 0 || options.prefill_chunk > max_prefill_chunk) {
    return fail(ErrorCode::invalid_argument, "prefill chunk {} is outside 1..{}", options.prefill_chunk,
                max_prefill_chunk);
  }
  DS4_ASSIGN(auto file, format::GgufFile::open(options.model_path));
  std::string notice;
  const auto report = [&] {
    if (!notice.empty() && options.on_notice) options.on_notice(notice);
    notice.clear();
  };
  DS4_ASSIGN(const auto shape, model::read_shape(file, &notice));
  report();
  DS4_ASSIGN(const auto weights, model::bind_weights(file, shape));
  DS4_ASSIGN(auto tokenizer, load_tokenizer(file, &notice));
  report();
  if (tokenizer.vocabulary_size() != shape.vocabulary) {
    return fail(ErrorCode::format, "{}: the tokenizer has {} tokens but the model has {}", file.path(),
                tokenizer.vocabulary_size(), shape.vocabulary);
  }
  if (options.warm_weights) warm(file, options.on_load_progress);
  DS4_ASSIGN(auto drafter, load_drafter(options, file, shape));
  SteeringDirections directions;
  if (!options.steering_path.empty()) {
    DS4_ASSIGN(directions, read_directions(options.steering_path, shape.layers, shape.width));
    if (!directions.model_name.empty() && directions.model_name != shape.name && options.on_notice) {
      options.on_notice(fmt::format("{}: made with \"{}\", used with \"{}\"", options.steering_path,
                                    directions.model_name, shape.name));
    }
  }
  DS4_ASSIGN(auto backend, make_backend(shape, weights, drafter.pointer(), directions.values, options));
  if (wrap) backend = wrap(std::move(backend));
  ModelInfo info = describe(shape, file, backend->info());
  info.steering = !directions.values.empty();
  info.steering_component = directions.component;
  // The mapping does not move with the object, so the weights' views stay valid.
  return EngineImpl{std::move(file),
                    std::move(drafter.file),
                    std::move(tokenizer),
                    std::move(backend),
                    std::move(info),
                    options.prefill_chunk,
                    model::DecodeTraffic(shape, weights),
                    StateLayout(shape.ratios, shape.width, shape.vocabulary, drafter.weights.has_value()),
                    digest_directions(directions),
                    options.exact_activations};
}

}  // namespace

Result<MemoryPlan> Engine::plan_memory(const EngineOptions& options) {
  return catch_bad_alloc("the plan of a model", [&] { return plan(options); });
}

Result<Engine> Engine::open(const EngineOptions& options) {
  return EngineAccess::open(options, {});
}

Result<Engine> EngineAccess::open(const EngineOptions& options, const BackendWrapper& wrap) {
  return catch_bad_alloc("a model", [&]() -> Result<Engine> {
    DS4_ASSIGN(EngineImpl impl, load(options, wrap));
    return Engine(std::make_shared<const EngineImpl>(std::move(impl)));
  });
}

Engine::Engine(std::shared_ptr<const EngineImpl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

const ModelInfo& Engine::info() const {
  return impl_->info;
}
const Tokenizer& Engine::tokenizer() const {
  return impl_->tokenizer;
}
uint32_t Engine::prefill_chunk() const {
  return impl_->prefill_chunk;
}
DecodeBytes Engine::decode_bytes(uint64_t position) const {
  return {impl_->traffic.weight_bytes(position), impl_->traffic.state_bytes(position)};
}
Result<double> Engine::measure_read_bandwidth() const {
  return impl_->backend->measure_read_bandwidth();
}

Result<Session> Engine::create_session(uint64_t context) const {
  if (context < 2 || context > impl_->info.max_context) {
    return fail(ErrorCode::invalid_argument, "context {} is outside 2..{}, which is what the model declares",
                context, impl_->info.max_context);
  }
  return catch_bad_alloc("a new session", [&]() -> Result<Session> {
    DS4_ASSIGN(auto sequence, impl_->backend->create_sequence());
    return Session(std::make_unique<Session::Impl>(impl_, std::move(sequence), context));
  });
}

}  // namespace ds4
