#include "common/model_run.hpp"

#include <algorithm>
#include <chrono>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/interrupt.hpp"
#include "common/progress.hpp"
#include "format/gguf.hpp"

namespace ds4::cli {

namespace {

EngineOptions engine_options(const ProgramOptions& options, const std::string& path) {
  EngineOptions result;
  result.model_path = path;
  result.mtp_path = options.mtp_path;
  result.steering_path = options.steering_path;
  result.backend = options.backend;
  result.threads = options.threads;
  result.prefill_chunk = options.prefill_chunk_tokens;
  result.exact_activations = options.exact_activations;
  result.warm_weights = options.warm_weights;
  result.on_notice = [](const std::string& sentence) { warn(sentence); };
  return result;
}

}  // namespace

Result<Engine> open_engine(const ProgramOptions& options, const std::string& path) {
  ProgressLine line;
  EngineOptions with_progress = engine_options(options, path);
  const auto begin = std::chrono::steady_clock::now();
  with_progress.on_load_progress = [&](uint64_t done, uint64_t total) {
    line.show(load_text(done, total, std::chrono::steady_clock::now() - begin), done == total);
  };
  DS4_ASSIGN(Engine engine, Engine::open(with_progress));
  if (options.mtp_depth.value_or(0) > 0 && !engine.info().drafter) {
    if (!options.mtp_path.empty()) {
      return fail(ErrorCode::unsupported, "drafts are not possible on {}", engine.info().backend);
    }
    return fail(ErrorCode::invalid_argument,
                "--mtp-draft needs a drafter, and there is none in the model file: name one with --mtp");
  }
  if (!options.mtp_depth && !options.mtp_path.empty() && !engine.info().drafter) {
    warn(fmt::format("drafts are not possible on {}; going on without", engine.info().backend));
  }
  return engine;
}

void prepare_session(Session& session, const Engine& engine, const ProgramOptions& options) {
  session.set_speculation(speculation_options(options));
  if (!engine.info().steering) return;
  session.set_steering(steering_scales(options, engine.info().steering_component).value_or({}));
}

std::string steering_sentence(const Engine& engine, const ProgramOptions& options) {
  const SteeringScales scales = steering_scales(options, engine.info().steering_component).value_or({});
  return fmt::format("steering by {}: feed-forward {}, attention {}", options.steering_path,
                     scales.feed_forward, scales.attention);
}

SpeculationOptions speculation_options(const ProgramOptions& options) {
  SpeculationOptions result;
  result.depth = options.mtp_depth.value_or(options.mtp_path.empty() ? 0 : default_draft_depth);
  result.min_margin = options.mtp_margin;
  return result;
}

Result<std::string> describe_memory(const ProgramOptions& options, const std::string& path,
                                    uint64_t context_tokens) {
  DS4_ASSIGN(const MemoryPlan plan, Engine::plan_memory(engine_options(options, path)));
  return memory_table(plan, context_tokens);
}

std::string context_sentence(const Engine& engine, uint64_t context_tokens) {
  const ModelInfo& info = engine.info();
  const double bytes = info.state_bytes_per_token * static_cast<double>(context_tokens);
  return fmt::format("{} on {}, context {} tokens ({} when full), prefill chunk {}", info.variant,
                     info.backend, context_tokens, human_bytes(static_cast<uint64_t>(bytes)),
                     engine.prefill_chunk());
}

Result<SyncStats> sync_with_progress(Session& session, std::span<const Token> prompt) {
  ProgressLine line;
  size_t kept = prompt.size();  // the first report tells how much was there already
  SyncOptions options;
  options.cancelled = [] { return interrupted(); };
  options.on_progress = [&](size_t done, size_t total) {
    kept = std::min(kept, done);
    line.show(prefill_text(done - kept, total - kept), done == total);
  };
  return session.sync(prompt, options);
}

bool ends_reply(const SpecialTokens& special, Token token) {
  return token == special.eos || token == special.user || token == special.bos;
}

std::string drafts_text(const SpeculationStats& stats) {
  std::string places;
  for (size_t i = 0; i < stats.drafted.size() && stats.drafted[i] > 0; ++i) {
    places += fmt::format("{}{}/{}", places.empty() ? "" : ", ", stats.accepted[i], stats.drafted[i]);
  }
  std::string text =
      fmt::format("drafts accepted by place: {}; {:.2f} tokens per step", places, stats.tokens_per_step());
  if (stats.speedup() > 0) text += fmt::format(", {:.2f} times the speed of single tokens", stats.speedup());
  return text;
}

Result<unsigned> expert_bits(const std::string& model_path) {
  DS4_ASSIGN(const auto file, format::GgufFile::open(model_path));
  for (const auto& tensor : file.tensors()) {
    if (tensor.name.find("ffn_gate_exps") == std::string_view::npos) continue;
    const auto traits = format::type_traits(tensor.type);
    if (traits) return traits->block_bytes * 8 / traits->block_elements;
  }
  return 0u;
}

std::string device_name(const Engine& engine) {
  const std::string& backend = engine.info().backend;
  return backend.substr(0, backend.find(' '));
}

}  // namespace ds4::cli
