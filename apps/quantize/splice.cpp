#include "splice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "copy_gguf.hpp"
#include "format/gguf.hpp"
#include "format/gguf_files.hpp"
#include "format/gguf_writer.hpp"
#include "model/tensor_list.hpp"
#include "model/weights.hpp"
#include "output_file.hpp"

namespace ds4::quantize {
namespace {

using format::GgufArray;
using format::GgufFile;
using format::GgufTensor;
using format::GgufValue;
using model::ModelShape;
using model::TensorRole;
using model::TensorSlot;

constexpr std::string_view fingerprint_key = "quantize.source.fingerprint";
constexpr std::string_view splice_prefix = "quantize.splice.";

/// A file of a whole model, its tensors found by role.
struct Model {
  GgufFile file;
  ModelShape shape;
  model::ModelWeights weights;
  std::vector<TensorSlot> slots;  // into `weights`

  const std::string& path() const { return file.path(); }
};

Result<std::unique_ptr<Model>> open_model(const std::string& path) {
  DS4_ASSIGN(GgufFile file, GgufFile::open(path));
  DS4_ASSIGN(ModelShape shape, model::read_shape(file, nullptr));
  DS4_ASSIGN(model::ModelWeights weights, model::bind_weights(file, shape));
  auto opened = std::make_unique<Model>(Model{std::move(file), std::move(shape), std::move(weights), {}});
  // The list sizes what it points into anew, which forgets nothing: the tensors are there already.
  opened->slots = list_model_tensors(opened->shape, opened->weights);
  return opened;
}

/// The name and both values of a count in which the shapes differ.
std::optional<std::string> shape_difference(const ModelShape& a, const ModelShape& b) {
  const std::pair<const char*, std::pair<uint64_t, uint64_t>> counts[] = {
      {"layers", {a.layers, b.layers}},
      {"width", {a.width, b.width}},
      {"vocabulary", {a.vocabulary, b.vocabulary}},
      {"heads", {a.heads, b.heads}},
      {"rank of the queries", {a.q_rank, b.q_rank}},
      {"output groups", {a.output_groups, b.output_groups}},
      {"rank of the output", {a.output_rank, b.output_rank}},
      {"experts", {a.experts, b.experts}},
      {"experts of a token", {a.experts_used, b.experts_used}},
      {"width of the experts", {a.expert_width, b.expert_width}},
      {"layers routed by token", {a.hash_layers, b.hash_layers}},
      {"heads of the indexer", {a.index_heads, b.index_heads}},
      {"rows that the indexer chooses", {a.index_top_k, b.index_top_k}},
  };
  for (const auto& [name, values] : counts) {
    if (values.first != values.second) return fmt::format("{}: {} and {}", name, values.first, values.second);
  }
  if (a.ratios != b.ratios) return "the compression of the layers";
  if (a.routed_scale != b.routed_scale)
    return fmt::format("scale of the experts: {} and {}", a.routed_scale, b.routed_scale);
  return std::nullopt;
}

bool same_value(const GgufValue& a, const GgufValue& b) {
  const auto* left = std::get_if<GgufArray>(&a.value);
  const auto* right = std::get_if<GgufArray>(&b.value);
  if (left && right)
    return left->element_type == right->element_type && left->count == right->count &&
           left->strings == right->strings && std::ranges::equal(left->bytes, right->bytes);
  const auto* x = std::get_if<uint64_t>(&a.value);
  const auto* y = std::get_if<uint64_t>(&b.value);
  return x && y && *x == *y;
}

/// A key of the tokenizer that both have with different values.
std::optional<std::string_view> tokenizer_difference(const GgufFile& a, const GgufFile& b) {
  for (const std::string_view key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
        "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"}) {
    const GgufValue* left = a.find(key);
    const GgufValue* right = b.find(key);
    if (left && right && !same_value(*left, *right)) return key;
  }
  return std::nullopt;
}

bool is_expert(const TensorSlot& slot) {
  return slot.role == TensorRole::gate_up_expert || slot.role == TensorRole::down_expert;
}

/// Norms, biases and tables are what quantising leaves alone, and no two checkpoints have the same.
Result<void> check_vectors(const Model& base, const Model& donor) {
  for (size_t i = 0; i < base.slots.size(); ++i) {
    const GgufTensor& a = *base.slots[i].tensor;
    const GgufTensor& b = *donor.slots[i].tensor;
    const TensorRole role = base.slots[i].role;
    if ((role != TensorRole::vector && role != TensorRole::table) || a.type != b.type) continue;
    if (std::memcmp(a.data, b.data, a.size_bytes) != 0)
      return fail(ErrorCode::invalid_argument,
                  "{} and {} do not hold one model: tensor {} has different values", base.path(),
                  donor.path(), a.name);
  }
  return {};
}

Result<void> check_same_model(const Model& base, const Model& donor) {
  if (const auto difference = shape_difference(base.shape, donor.shape))
    return fail(ErrorCode::invalid_argument, "{} and {} do not hold one model: {}", base.path(), donor.path(),
                *difference);
  if (const auto key = tokenizer_difference(base.file, donor.file))
    return fail(ErrorCode::invalid_argument, "{} and {} do not hold one model: {} differs", base.path(),
                donor.path(), *key);
  return check_vectors(base, donor);
}

std::string text_of(const GgufFile& file, std::string_view key) {
  const auto text = file.get_string(key);
  return text ? std::string(*text) : std::string();
}

/// The lists of earlier splices with one more element.
void add_history(const GgufFile& base, std::string_view name, std::string value, format::GgufWriter& writer) {
  const std::string key = std::string(splice_prefix) + std::string(name);
  std::vector<std::string> values;
  if (const auto earlier = base.get_string_array(key)) values.assign(earlier->begin(), earlier->end());
  values.push_back(std::move(value));
  writer.add_string_array(key, values);
}

class Splice {
 public:
  explicit Splice(const SpliceOptions& options) : options_(options), writer_(options.output) {}

  Result<SpliceSummary> run() {
    std::vector<std::string> inputs = format::gguf_files(options_.base);
    for (std::string& file : format::gguf_files(options_.donor)) inputs.push_back(std::move(file));
    if (!options_.dry_run) {
      DS4_TRY(check_output(options_.output, options_.overwrite, inputs));
      if (options_.checksums)
        DS4_TRY(check_output(checksum_path(options_.output), options_.overwrite, inputs));
      if (!options_.overwrite) DS4_TRY(check_no_part(options_.output, "--overwrite discards it"));
    }
    DS4_ASSIGN(base_, open_model(options_.base));
    DS4_ASSIGN(donor_, open_model(options_.donor));
    DS4_TRY(check_same_model(*base_, *donor_));
    DS4_ASSIGN(layers_, parse_layers(options_.layers, base_->shape.layers));
    summary_.layers = layers_text(layers_);
    choose_tensors();
    add_keys();
    DS4_ASSIGN(summary_.file_bytes, writer_.planned_bytes());
    if (options_.dry_run) return std::move(summary_);
    if (options_.overwrite) writer_.discard_part();
    DS4_TRY(check_space(std::vector{OutputSize{options_.output, summary_.file_bytes}}));
    uint64_t done = 0;
    for (const GgufTensor* tensor : tensors_) {
      if (options_.progress) options_.progress(done, summary_.tensor_bytes);
      DS4_TRY(copy_tensor(*tensor, options_.cancelled, writer_));
      done += tensor->size_bytes;
    }
    DS4_TRY(writer_.finish());
    DS4_TRY(options_.checksums ? write_checksum(options_.output) : renew_checksum(options_.output));
    return std::move(summary_);
  }

 private:
  /// The donor's tensor for each of the base that it replaces, by the base's name.
  std::map<std::string_view, const GgufTensor*> donated() const {
    const std::set<uint32_t> wanted(layers_.begin(), layers_.end());
    std::map<std::string_view, const GgufTensor*> result;
    for (size_t i = 0; i < base_->slots.size(); ++i) {
      const TensorSlot& slot = base_->slots[i];
      if (!is_expert(slot)) continue;
      const bool chosen = std::any_of(wanted.begin(), wanted.end(), [&](uint32_t layer) {
        return slot.name.starts_with(fmt::format("blk.{}.", layer));
      });
      if (chosen) result[slot.tensor->name] = donor_->slots[i].tensor;
    }
    return result;
  }

  void choose_tensors() {
    const auto replaced = donated();
    std::map<std::string, size_t> changes;
    for (const GgufTensor& tensor : base_->file.tensors()) {
      const auto found = replaced.find(tensor.name);
      const GgufTensor* chosen = found == replaced.end() ? &tensor : found->second;
      add_like(tensor.name, *chosen, writer_);
      tensors_.push_back(chosen);
      summary_.base_bytes += tensor.size_bytes;
      summary_.tensor_bytes += chosen->size_bytes;
      if (chosen == &tensor) continue;
      ++summary_.donated;
      ++changes[fmt::format("{} -> {}", format::type_name(tensor.type), format::type_name(chosen->type))];
    }
    summary_.tensors = tensors_.size();
    summary_.changes.assign(changes.begin(), changes.end());
  }

  // A score is that of the base as it was.
  void add_keys() {
    copy_keys(
        base_->file,
        [](std::string_view key) {
          return key.starts_with(splice_prefix) || key.starts_with("quantize.score.");
        },
        writer_);
    const std::string donor_fingerprint = text_of(donor_->file, fingerprint_key);
    const std::string base_fingerprint = text_of(base_->file, fingerprint_key);
    summary_.different_sources =
        !base_fingerprint.empty() && !donor_fingerprint.empty() && base_fingerprint != donor_fingerprint;
    add_history(base_->file, "layers", summary_.layers, writer_);
    add_history(base_->file, "donor", std::filesystem::path(options_.donor).filename().string(), writer_);
    add_history(base_->file, "recipe", text_of(donor_->file, "quantize.recipe"), writer_);
    add_history(base_->file, "fingerprint", donor_fingerprint, writer_);
    add_history(base_->file, "imatrix", text_of(donor_->file, "quantize.imatrix.fingerprint"), writer_);
  }

  const SpliceOptions& options_;
  SpliceSummary summary_;
  std::unique_ptr<Model> base_, donor_;
  std::vector<uint32_t> layers_;
  std::vector<const GgufTensor*> tensors_;  // of the result, in order
  format::GgufWriter writer_;
};

Error bad_layers(std::string_view text) {
  return fail(ErrorCode::invalid_argument,
              "--layers {}: a list of layers is expected, such as 37-42 or 0-2,40-42", quote(text));
}

}  // namespace

Result<std::vector<uint32_t>> parse_layers(std::string_view text, uint32_t layers) {
  std::set<uint32_t> found;
  std::string_view rest = text;
  const auto take_number = [&](uint32_t& value) {
    const bool digit = !rest.empty() && rest.front() >= '0' && rest.front() <= '9';
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (!digit || error != std::errc()) return false;
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    return true;
  };
  do {
    if (!found.empty()) rest.remove_prefix(1);  // the comma
    uint32_t first = 0, last = 0;
    if (!take_number(first)) return bad_layers(text);
    last = first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!take_number(last) || last < first) return bad_layers(text);
    }
    if (last >= layers)
      return fail(ErrorCode::invalid_argument, "--layers {}: the model has layers 0 to {}", quote(text),
                  layers - 1);
    for (uint32_t layer = first; layer <= last; ++layer) found.insert(layer);
  } while (rest.starts_with(','));
  if (!rest.empty()) return bad_layers(text);
  return std::vector<uint32_t>(found.begin(), found.end());
}

std::string layers_text(const std::vector<uint32_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", layers[i]);
    if (end - i > 1) text += fmt::format("-{}", layers[end - 1]);
    i = end;
  }
  return text;
}

Result<SpliceSummary> splice_models(const SpliceOptions& options) {
  return Splice(options).run();
}

}  // namespace ds4::quantize
