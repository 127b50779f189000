#include "convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "common/atomic_file.hpp"
#include "encode_tensor.hpp"
#include "fingerprint.hpp"
#include "format/gguf_writer.hpp"
#include "format/safetensors.hpp"
#include "metadata.hpp"
#include "model/weights.hpp"
#include "plan.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::GgufWriter;
using format::SafetensorsCheckpoint;

namespace fs = std::filesystem;

/// True if `path` is one of the files a checkpoint is read from, by whatever name.
bool is_checkpoint_file(const std::string& path, const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path extension = entry->path().extension();
    if (extension != ".json" && extension != ".safetensors") continue;
    std::error_code ignored;
    if (fs::equivalent(path, entry->path(), ignored)) return true;
  }
  return false;
}

/// Renaming puts the result in the place of whatever has its name.
Result<void> check_output(const std::string& path, const ConvertOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return {};
  if (!fs::is_regular_file(status))
    return fail(ErrorCode::invalid_argument, "{} is not a regular file and will not be replaced", path);
  if (!options.overwrite)
    return fail(ErrorCode::invalid_argument, "{} exists already; use --overwrite to replace it", path);
  if (!options.checkpoint.empty() && is_checkpoint_file(path, options.checkpoint))
    return fail(ErrorCode::invalid_argument, "{} is a file of the checkpoint", path);
  for (const std::string& input : {options.gguf, options.imatrix}) {
    if (!input.empty() && fs::equivalent(path, input, error))
      return fail(ErrorCode::invalid_argument, "{} is a file that is read", path);
  }
  return {};
}

Result<void> check_tables(const std::vector<MappedTensor>& tensors, uint32_t experts) {
  for (const MappedTensor& tensor : tensors) {
    if (tensor.role != model::TensorRole::table) continue;
    const Source& source = tensor.sources[0];
    for (uint64_t i = 0; i < tensor.columns() * tensor.rows(); ++i) {
      int64_t expert = 0;
      int32_t narrow = 0;
      if (source.is_wide) {
        std::memcpy(&expert, source.bytes.data() + i * sizeof expert, sizeof expert);
      } else {
        std::memcpy(&narrow, source.bytes.data() + i * sizeof narrow, sizeof narrow);
        expert = narrow;
      }
      if (expert < 0 || expert >= experts)
        return fail(ErrorCode::format, "tensor {} names expert {}, but there are {} experts", source.name,
                    expert, experts);
    }
  }
  return {};
}

std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 5400) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options)
      : options_(options), writer_(options.output), mtp_writer_(options.mtp_output) {}

  Result<ConvertSummary> run() {
    if (!options_.dry_run) {
      DS4_TRY(check_output(options_.output, options_));
      if (with_mtp()) DS4_TRY(check_output(options_.mtp_output, options_));
      if (options_.checksums) {
        DS4_TRY(check_output(checksum_path(options_.output), options_));
        if (with_mtp()) DS4_TRY(check_output(checksum_path(options_.mtp_output), options_));
      }
    }
    if (!options_.imatrix.empty()) {
      DS4_ASSIGN(imatrix_, format::read_imatrix(options_.imatrix));
    }
    DS4_TRY(options_.gguf.empty() ? open_checkpoint() : open_gguf());
    DS4_TRY(in_source(check_tables(tensors_, shape_.experts)));
    DS4_ASSIGN(plan_, in_source(plan_tensors(tensors_, options_.recipe, shape_.layers)));
    DS4_ASSIGN(mtp_plan_, in_source(plan_tensors(mtp_tensors_, options_.recipe, shape_.layers)));
    summary_.variant = model::variant_name(shape_.variant);
    summary_.tensors = plan_.size();
    summary_.mtp_tensors = mtp_plan_.size();
    for (const auto& [plan, writer] : files()) {
      add_quantize_metadata(origin(writer == &writer_ ? tensors_ : mtp_tensors_), *writer);
      for (const PlannedTensor& planned : *plan)
        writer->add_tensor(planned.tensor->name, planned.type, planned.tensor->dims);
    }
    DS4_ASSIGN(summary_.file_bytes, writer_.planned_bytes());
    if (with_mtp()) {
      DS4_ASSIGN(summary_.mtp_file_bytes, mtp_writer_.planned_bytes());
    }
    TensorEncoder encoder({source_path(), options_.threads, options_.cancelled,
                           imatrix_ ? &*imatrix_ : nullptr, options_.imatrix_strict});
    if (options_.dry_run) {
      DS4_ASSIGN(summary_.plan, describe(encoder));
      return std::move(summary_);
    }
    for (const auto& [plan, writer] : files()) {
      for (const PlannedTensor& planned : *plan) total_cost_ += planned.cost();
    }
    for (const auto& [plan, writer] : files()) DS4_TRY(write_tensors(*plan, encoder, *writer));
    if (with_mtp()) DS4_TRY(mtp_writer_.finish());
    DS4_TRY(writer_.finish());
    if (options_.checksums) {
      if (with_mtp()) DS4_TRY(write_checksum(options_.mtp_output));
      DS4_TRY(write_checksum(options_.output));
    }
    return std::move(summary_);
  }

 private:
  using File = std::pair<const std::vector<PlannedTensor>*, GgufWriter*>;

  std::vector<File> files() {
    std::vector<File> files{{&plan_, &writer_}};
    if (with_mtp()) files.emplace_back(&mtp_plan_, &mtp_writer_);
    return files;
  }
  bool with_mtp() const { return !options_.mtp_output.empty(); }
  const std::string& source_path() const {
    return options_.gguf.empty() ? options_.checkpoint : options_.gguf;
  }
  // Plain recipes say nothing, so that their files depend on the checkpoint alone; a part of a file must.
  Origin origin(const std::vector<MappedTensor>& tensors) const {
    Origin origin;
    if (!options_.recipe.is_plain()) origin.recipe = options_.recipe.name();
    if (!options_.recipe.is_plain() || options_.resume)
      origin.source_fingerprint = source_fingerprint(tensors);
    origin.imatrix = imatrix_ ? &*imatrix_ : nullptr;
    origin.imatrix_path = options_.imatrix;
    return origin;
  }
  static std::string checksum_path(const std::string& path) { return path + ".sha256"; }

  // As sha256sum writes it, for `sha256sum -c` in the file's folder.
  static Result<void> write_checksum(const std::string& path) {
    DS4_ASSIGN(const std::string hash, file_sha256(path));
    DS4_ASSIGN(cli::AtomicFile file, cli::AtomicFile::create(checksum_path(path)));
    DS4_TRY(file.write(fmt::format("{}  {}\n", hash, fs::path(path).filename().string())));
    return file.commit();
  }

  // Puts the folder or file in front of a message that names only a tensor.
  template <class T>
  Result<T> in_source(Result<T> result) const {
    if (result) return result;
    return fail(result.error().code, "{}: {}", source_path(), result.error().message);
  }

  Result<void> open_checkpoint() {
    DS4_ASSIGN(const CheckpointConfig config, read_checkpoint_config(options_.checkpoint));
    shape_ = config.shape;
    DS4_ASSIGN(const CheckpointTokenizer tokenizer,
               read_checkpoint_tokenizer(options_.checkpoint, shape_.vocabulary));
    DS4_ASSIGN(checkpoint_, SafetensorsCheckpoint::open(options_.checkpoint));
    const auto slots = list_model_tensors(shape_, weights_);
    const auto mtp_slots = list_mtp_tensors(shape_, mtp_weights_);
    DS4_TRY(check_rules(slots, mtp_slots));
    DS4_ASSIGN(tensors_, in_source(map_tensors(*checkpoint_, slots)));
    if (with_mtp()) {
      DS4_ASSIGN(mtp_tensors_, in_source(map_tensors(*checkpoint_, mtp_slots)));
    }
    summary_.mtp_left_out = !with_mtp() && config.mtp_layers > 0;
    const std::string name = options_.name.empty() ? shape_.name : options_.name;
    add_general_metadata("deepseek4", name, writer_);
    add_shape_metadata(shape_, writer_);
    add_tokenizer_metadata(config, tokenizer, writer_);
    if (with_mtp()) add_general_metadata("deepseek4_mtp_support", name + " MTP", mtp_writer_);
    return {};
  }

  // An MTP block stays in the file of the model.
  Result<void> open_gguf() {
    if (with_mtp())
      return fail(ErrorCode::invalid_argument,
                  "--mtp-out takes the MTP block of a checkpoint, not of a GGUF file");
    DS4_ASSIGN(gguf_, GgufFile::open(options_.gguf));
    DS4_ASSIGN(shape_, model::read_shape(*gguf_, nullptr));
    DS4_ASSIGN(weights_, model::bind_weights(*gguf_, shape_));
    auto slots = list_model_tensors(shape_, weights_);
    std::vector<model::TensorSlot> mtp_slots;
    if (model::has_mtp(*gguf_)) {
      DS4_ASSIGN(mtp_weights_, model::bind_mtp(*gguf_, shape_));
      mtp_slots = list_mtp_tensors(shape_, mtp_weights_);
    }
    DS4_TRY(check_rules(slots, mtp_slots));
    slots.insert(slots.end(), mtp_slots.begin(), mtp_slots.end());
    tensors_ = map_gguf_tensors(slots);
    copy_metadata(*gguf_, shape_, options_.name, writer_);
    return {};
  }

  Result<void> check_rules(std::vector<model::TensorSlot> slots, const std::vector<model::TensorSlot>& more) {
    slots.insert(slots.end(), more.begin(), more.end());
    return options_.recipe.check_rules(slots);
  }

  Result<void> write_tensors(const std::vector<PlannedTensor>& plan, TensorEncoder& encoder,
                             GgufWriter& writer) {
    size_t complete = 0;
    if (options_.resume) {
      DS4_ASSIGN(complete, writer.resume());
      summary_.resumed_tensors += complete;
    }
    for (size_t i = 0; i < plan.size(); ++i) {
      const PlannedTensor& planned = plan[i];
      ++done_tensors_;
      if (i < complete) {
        total_cost_ -= planned.cost();  // no time goes by for it
        continue;
      }
      const double source_cost = planned.cost() / static_cast<double>(planned.tensor->sources.size());
      DS4_TRY(encoder.write(*planned.tensor, planned.type, writer, [&](size_t source) {
        if (!options_.progress) return;
        options_.progress({done_tensors_, summary_.tensors + summary_.mtp_tensors, planned.tensor->name,
                           format::type_name(planned.type),
                           (done_cost_ + source_cost * static_cast<double>(source)) / total_cost_});
      }));
      done_cost_ += planned.cost();
    }
    return {};
  }

  Result<std::string> describe(TensorEncoder& encoder) {
    std::string text;
    uint64_t memory_bytes = 0;
    double seconds = 0;
    std::map<std::pair<std::string_view, format::TensorType>, double> seconds_per_weight;
    for (const auto& [plan, writer] : files()) {
      text += plan_text(*plan);
      for (const PlannedTensor& planned : *plan) {
        memory_bytes = std::max(memory_bytes, encoder.memory_bytes(*planned.tensor, planned.type));
        const std::pair key(source_type_name(planned.tensor->sources[0]), planned.type);
        auto speed = seconds_per_weight.find(key);
        if (speed == seconds_per_weight.end()) {
          DS4_ASSIGN(const double measured, encoder.measure_seconds(*planned.tensor, planned.type));
          speed = seconds_per_weight.emplace(key, measured / static_cast<double>(planned.weights())).first;
        }
        seconds += speed->second * static_cast<double>(planned.weights());
      }
      const uint64_t bytes = writer == &writer_ ? summary_.file_bytes : summary_.mtp_file_bytes;
      text += fmt::format("\n{} tensors, file of {} bytes ({:.2f} GiB), recipe {}\n", plan->size(), bytes,
                          static_cast<double>(bytes) / (1 << 30), options_.recipe.name());
    }
    text += fmt::format("Memory besides the mapped source: {:.1f} MiB\n",
                        static_cast<double>(memory_bytes) / (1 << 20));
    text +=
        fmt::format("Encoding: about {} on {} threads, measured on the first rows; the disk comes on top\n",
                    duration_text(seconds), encoder.threads());
    return text;
  }

  const ConvertOptions& options_;
  ConvertSummary summary_;
  std::optional<format::Imatrix> imatrix_;
  std::optional<SafetensorsCheckpoint> checkpoint_;
  std::optional<GgufFile> gguf_;
  model::ModelShape shape_;
  model::ModelWeights weights_;
  model::MtpWeights mtp_weights_;
  std::vector<MappedTensor> tensors_, mtp_tensors_;
  std::vector<PlannedTensor> plan_, mtp_plan_;
  GgufWriter writer_, mtp_writer_;
  size_t done_tensors_ = 0;
  double total_cost_ = 0, done_cost_ = 0;
};

}  // namespace

Result<ConvertSummary> convert_model(const ConvertOptions& options) {
  return Conversion(options).run();
}

}  // namespace ds4::quantize
