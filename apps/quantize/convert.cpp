#include "convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "drafter_source.hpp"
#include "embedded_vectors.hpp"
#include "encode_tensor.hpp"
#include "fingerprint.hpp"
#include "format/gguf_files.hpp"
#include "format/gguf_writer.hpp"
#include "format/safetensors.hpp"
#include "metadata.hpp"
#include "model/weights.hpp"
#include "output_file.hpp"
#include "plan.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {
namespace {

using format::GgufFile;
using format::GgufWriter;
using format::SafetensorsCheckpoint;

namespace fs = std::filesystem;

constexpr std::string_view drafter_architecture = "deepseek4_mtp_support";

/// The files of a checkpoint, which a result must not replace.
std::vector<std::string> checkpoint_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path extension = entry->path().extension();
    if (extension == ".json" || extension == ".safetensors") files.push_back(entry->path().string());
  }
  return files;
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

/// Hours, minutes and seconds.
std::string duration_text(double seconds) {
  const auto whole = std::max(int64_t{1}, static_cast<int64_t>(std::llround(seconds)));
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

/// Bytes that this program holds now, files that are mapped aside; 0 where the system does not tell.
uint64_t held_bytes() {
  constexpr std::string_view name = "RssAnon:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10) * 1024;
  }
  return 0;
}

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options)
      : options_(options), writer_(options.output), mtp_writer_(mtp_path()) {}

  Result<ConvertSummary> run() {
    if (!options_.dry_run) DS4_TRY(check_outputs());
    if (!options_.imatrix.empty()) {
      DS4_ASSIGN(imatrix_, format::read_imatrix(options_.imatrix));
    }
    DS4_TRY(options_.gguf.empty() ? open_checkpoint() : open_gguf());
    DS4_TRY(in_source(check_tables(tensors_, shape_.experts)));
    DS4_ASSIGN(plan_, in_source(plan_tensors(tensors_, options_.recipe, shape_.layers)));
    DS4_ASSIGN(mtp_plan_, in_source(plan_tensors(mtp_tensors_, options_.recipe, shape_.layers)));
    summary_.tensors = plan_.size();
    summary_.mtp_tensors = mtp_plan_.size();
    for (const File& file : files()) {
      add_quantize_metadata(origin(*file.tensors), *file.writer);
      for (const PlannedTensor& planned : *file.plan)
        file.writer->add_tensor(planned.tensor->name, planned.type, planned.tensor->dims);
      if (embeds(*file.writer)) add_vectors(*imatrix_, tensors_, *file.writer);
      DS4_ASSIGN(*file.bytes, file.writer->planned_bytes());
    }
    TensorEncoder encoder(
        {source_path(), options_.threads, options_.cancelled, imatrix_ ? &*imatrix_ : nullptr});
    DS4_TRY(check_importance(encoder));
    std::vector<OutputSize> sizes;
    for (const File& file : files()) {
      if (!file.path->empty()) sizes.push_back({*file.path, *file.bytes});
    }
    if (options_.dry_run) {
      DS4_ASSIGN(summary_.plan, describe(encoder));
      for (const auto& fine : {check_outputs(), check_space(sizes)}) {
        if (!fine && options_.notice) options_.notice(fine.error().message);
      }
      return std::move(summary_);
    }
    DS4_TRY(check_space(sizes));
    for (const File& file : files()) {
      for (const PlannedTensor& planned : *file.plan) total_cost_ += planned.cost();
    }
    for (const File& file : files()) {
      if (options_.overwrite) file.writer->discard_part();
    }
    for (const File& file : files()) DS4_TRY(write_tensors(*file.plan, encoder, *file.writer));
    // The drafter first: where both are wanted, a model without it would look complete.
    auto written = files();
    std::reverse(written.begin(), written.end());
    for (const File& file : written) DS4_TRY(file.writer->finish());
    for (const File& file : written)
      DS4_TRY(options_.checksums ? write_checksum(*file.path) : renew_checksum(*file.path));
    return std::move(summary_);
  }

 private:
  /// One of the files to be written, and what it will hold.
  struct File {
    const std::vector<MappedTensor>* tensors;
    const std::vector<PlannedTensor>* plan;
    GgufWriter* writer;
    const std::string* path;
    uint64_t* bytes;  // in the summary
  };

  std::vector<File> files() {
    std::vector<File> files;
    if (with_model()) files.push_back({&tensors_, &plan_, &writer_, &options_.output, &summary_.file_bytes});
    if (with_mtp())
      files.push_back({&mtp_tensors_, &mtp_plan_, &mtp_writer_, &mtp_path(), &summary_.mtp_file_bytes});
    return files;
  }
  // A dry run without names plans the model.
  bool with_model() const {
    return !from_drafter_ && (!options_.output.empty() || options_.mtp_output.empty());
  }
  bool with_mtp() const { return from_drafter_ || !options_.mtp_output.empty(); }
  /// Where the MTP block goes: a drafter is the only thing that its file is made into.
  const std::string& mtp_path() const {
    return options_.mtp_output.empty() ? options_.output : options_.mtp_output;
  }
  bool embeds(const GgufWriter& writer) const {
    return options_.embed_imatrix && imatrix_ && &writer == &writer_;
  }
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
    origin.imatrix_file = fs::path(options_.imatrix).filename().string();
    return origin;
  }

  Result<void> check_outputs() const {
    std::vector<std::string> inputs = format::gguf_files(options_.gguf);
    inputs.push_back(options_.imatrix);
    inputs.push_back(options_.recipe_file);
    if (!options_.checkpoint.empty()) {
      const auto files = checkpoint_files(options_.checkpoint);
      inputs.insert(inputs.end(), files.begin(), files.end());
    }
    for (const std::string& path : {options_.output, options_.mtp_output}) {
      if (path.empty()) continue;
      DS4_TRY(check_output(path, options_.overwrite, inputs));
      if (!options_.overwrite && !options_.resume)
        DS4_TRY(check_no_part(path, "--resume continues it, --overwrite discards it"));
      if (options_.checksums) DS4_TRY(check_output(checksum_path(path), options_.overwrite, inputs));
    }
    return {};
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
    summary_.variant = model::variant_name(shape_.variant);
    DS4_ASSIGN(const CheckpointTokenizer tokenizer,
               read_checkpoint_tokenizer(options_.checkpoint, shape_.vocabulary));
    DS4_ASSIGN(checkpoint_, SafetensorsCheckpoint::open(options_.checkpoint));
    const auto slots = list_model_tensors(shape_, weights_);
    const auto mtp_slots = list_mtp_tensors(shape_, mtp_weights_);
    DS4_TRY(check_rules(slots, mtp_slots));
    const std::string name = options_.name.empty() ? shape_.name : options_.name;
    if (with_model()) {
      DS4_ASSIGN(tensors_, in_source(map_tensors(*checkpoint_, slots)));
      add_general_metadata("deepseek4", name, writer_);
      add_shape_metadata(shape_, writer_);
      add_tokenizer_metadata(config, tokenizer, writer_);
    }
    if (with_mtp()) {
      DS4_ASSIGN(mtp_tensors_, in_source(map_tensors(*checkpoint_, mtp_slots)));
      add_general_metadata(drafter_architecture, name + " MTP", mtp_writer_);
    }
    summary_.mtp_left_out = !with_mtp() && config.mtp_layers > 0;
    return {};
  }

  // An MTP block stays in the file of the model unless it is asked for.
  Result<void> open_gguf() {
    DS4_ASSIGN(gguf_, GgufFile::open(options_.gguf));
    DS4_ASSIGN(from_drafter_, is_drafter_file(*gguf_));
    if (from_drafter_) return open_drafter();
    DS4_ASSIGN(shape_, model::read_shape(*gguf_, nullptr));
    summary_.variant = model::variant_name(shape_.variant);
    DS4_ASSIGN(weights_, model::bind_weights(*gguf_, shape_));
    auto slots = list_model_tensors(shape_, weights_);
    std::vector<model::TensorSlot> mtp_slots;
    if (model::has_mtp(*gguf_)) {
      DS4_ASSIGN(mtp_weights_, model::bind_mtp(*gguf_, shape_));
      mtp_slots = list_mtp_tensors(shape_, mtp_weights_);
    }
    DS4_TRY(check_rules(slots, mtp_slots));
    if (with_mtp()) {
      if (mtp_slots.empty())
        return fail(ErrorCode::not_found, "{}: there is no MTP block to write to {}", options_.gguf,
                    options_.mtp_output);
      mtp_tensors_ = map_gguf_tensors(mtp_slots);
      const std::string name = options_.name.empty() ? shape_.name : options_.name;
      add_general_metadata(drafter_architecture, name + " MTP", mtp_writer_);
    } else {
      slots.insert(slots.end(), mtp_slots.begin(), mtp_slots.end());
    }
    if (with_model()) {
      tensors_ = map_gguf_tensors(slots);
      copy_metadata(*gguf_, &shape_, options_.name, writer_);
    }
    return {};
  }

  Result<void> open_drafter() {
    if (!options_.output.empty() && !options_.mtp_output.empty())
      return fail(ErrorCode::invalid_argument,
                  "{}: this file has an MTP block only, which --out or --mtp-out names a file for, not both",
                  options_.gguf);
    DS4_ASSIGN(shape_, read_drafter_shape(*gguf_));
    DS4_ASSIGN(mtp_weights_, model::bind_mtp(*gguf_, shape_));
    const auto slots = list_mtp_tensors(shape_, mtp_weights_);
    DS4_TRY(check_rules(slots, {}));
    mtp_tensors_ = map_gguf_tensors(slots);
    copy_metadata(*gguf_, nullptr, options_.name, mtp_writer_);
    return {};
  }

  Result<void> check_rules(std::vector<model::TensorSlot> slots, const std::vector<model::TensorSlot>& more) {
    slots.insert(slots.end(), more.begin(), more.end());
    return options_.recipe.check_rules(slots);
  }

  /// True if the importance file names a tensor of the model, or could: of an MTP block alone it has none.
  bool is_of_this_model() const {
    const auto names = [&](std::string_view name) {
      const auto entry = imatrix_->entries.lower_bound(name);
      return entry != imatrix_->entries.end() && entry->first.starts_with(name);
    };
    return tensors_.empty() || std::any_of(tensors_.begin(), tensors_.end(), [&](const MappedTensor& tensor) {
             return names(tensor.name) ||
                    std::any_of(tensor.sources.begin(), tensor.sources.end(),
                                [&](const Source& source) { return names(source.name); });
           });
  }

  // Before hours go by, not when the turn of the tensor comes.
  Result<void> check_importance(const TensorEncoder& encoder) const {
    if (!imatrix_) return {};
    size_t users = 0;
    std::vector<std::string_view> without;
    for (const auto* plan : {&plan_, &mtp_plan_}) {
      for (const PlannedTensor& planned : *plan) {
        auto found = encoder.has_importance(*planned.tensor, planned.type);
        if (!found) return fail(found.error().code, "{}: {}", options_.imatrix, found.error().message);
        users += found->has_value();
        if (!found->value_or(true)) without.push_back(planned.tensor->name);
      }
    }
    if (!without.empty() && options_.imatrix_strict)
      return fail(ErrorCode::not_found, "{}: the importance file has no vector for tensor {}",
                  options_.imatrix, without[0]);
    if (!without.empty() && without.size() == users && !is_of_this_model())
      return fail(ErrorCode::not_found, "{}: none of its {} vectors is for a tensor of this model",
                  options_.imatrix, imatrix_->entries.size());
    if (!options_.notice) return {};
    if (!without.empty())
      options_.notice(fmt::format("{} has no vectors for {} of {} tensors that could use them: {}{}",
                                  options_.imatrix, without.size(), users, without[0],
                                  without.size() > 1 ? ", ..." : ""));
    if (users == 0 && !options_.embed_imatrix)
      options_.notice(fmt::format("no tensor uses {} in this recipe", options_.imatrix));
    return {};
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
    if (embeds(writer)) return write_vectors(*imatrix_, complete - std::min(complete, plan.size()), writer);
    return {};
  }

  Result<std::string> describe(TensorEncoder& encoder) {
    std::string text;
    const uint64_t held = held_bytes();  // names, tokenizer and importance; nothing is encoded yet
    uint64_t memory_bytes = 0;
    double seconds = 0;
    std::map<std::pair<std::string_view, format::TensorType>, double> seconds_per_weight;
    for (const File& file : files()) {
      text += plan_text(*file.plan);
      for (const PlannedTensor& planned : *file.plan) {
        memory_bytes = std::max(memory_bytes, encoder.memory_bytes(*planned.tensor, planned.type));
        const std::pair key(source_type_name(planned.tensor->sources[0]), planned.type);
        auto speed = seconds_per_weight.find(key);
        if (speed == seconds_per_weight.end()) {
          DS4_ASSIGN(const double measured, encoder.measure_seconds(*planned.tensor, planned.type));
          speed = seconds_per_weight.emplace(key, measured / static_cast<double>(planned.weights())).first;
        }
        seconds += speed->second * static_cast<double>(planned.weights());
      }
      text += fmt::format("\n{} tensors, file of {} bytes ({:.2f} GiB), recipe {}\n",
                          file.plan->size() + (embeds(*file.writer) ? imatrix_->entries.size() : 0),
                          *file.bytes, static_cast<double>(*file.bytes) / (1 << 30), options_.recipe.name());
    }
    text += fmt::format("Memory besides the mapped source: {:.1f} MiB\n",
                        static_cast<double>(held + memory_bytes) / (1 << 20));
    text += fmt::format(
        "Encoding: about {} (h:mm:ss) on {} threads, by the processor time of the first rows; other programs "
        "and "
        "the disk come on top\n",
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
  bool from_drafter_ = false;  // the source is a GGUF file with an MTP block only
  size_t done_tensors_ = 0;
  double total_cost_ = 0, done_cost_ = 0;
};

}  // namespace

Result<ConvertSummary> convert_model(const ConvertOptions& options) {
  return Conversion(options).run();
}

}  // namespace ds4::quantize
