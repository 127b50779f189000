// --inspect and --dump-tokens: what can be said about a file without loading it as a model.
#include <map>
#include <string_view>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "common/progress.hpp"
#include "diagnostics.hpp"
#include "format/gguf.hpp"
#include "model/weights.hpp"

namespace ds4::cli {
namespace {

using format::GgufFile;

struct Field {
  const char* label;
  const char* key;  // after "<architecture>."
};

/// "label 64, label 512": the fields that the file has.
std::string join_fields(const GgufFile& file, std::string_view architecture,
                        std::initializer_list<Field> fields) {
  std::string text;
  for (const Field& field : fields) {
    const auto value = file.get_uint(fmt::format("{}.{}", architecture, field.key));
    if (!value) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", field.label, *value);
  }
  return text;
}

/// The text without what a terminal could take for a command.
std::string printable(std::string_view text) {
  const std::string quoted = quote(text);
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

Result<std::string> describe_model(const std::string& path) {
  DS4_ASSIGN(const GgufFile file, GgufFile::open(path));
  std::string out;
  const auto add = [&](std::string_view label, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<18}{}\n", fmt::format("{}:", label), value);
  };
  const auto name = file.get_string("general.name");
  const auto architecture = file.get_string("general.architecture");
  const std::string_view prefix = architecture ? *architecture : std::string_view();
  add("model", name ? printable(*name) : "");
  add("architecture", printable(prefix));
  add("GGUF", fmt::format("version {}, {} metadata keys, {} tensors", file.version(), file.metadata().size(),
                          file.tensors().size()));
  const auto layers = file.get_uint(fmt::format("{}.block_count", prefix));
  const auto context = file.get_uint(fmt::format("{}.context_length", prefix));
  add("layers", layers ? fmt::format("{}", *layers) : "");
  add("training context", context ? fmt::format("{} tokens", *context) : "");
  add("attention", join_fields(file, prefix,
                               {{"heads", "attention.head_count"},
                                {"KV heads", "attention.head_count_kv"},
                                {"head dim", "attention.key_length"},
                                {"sliding window", "attention.sliding_window"}}));
  add("indexer", join_fields(file, prefix,
                             {{"heads", "attention.indexer.head_count"},
                              {"head dim", "attention.indexer.key_length"},
                              {"top-k", "attention.indexer.top_k"}}));
  add("experts", join_fields(file, prefix,
                             {{"count", "expert_count"},
                              {"used", "expert_used_count"},
                              {"groups", "expert_group_count"},
                              {"groups used", "expert_group_used_count"}}));

  struct Total {
    uint64_t tensors = 0, bytes = 0;
  };
  std::map<std::string_view, Total> types;
  Total all, vectors;  // importance vectors are no weights
  double parameters = 0;
  for (const auto& tensor : file.tensors()) {
    if (!model::is_weight(tensor)) {
      ++vectors.tensors;
      vectors.bytes += tensor.size_bytes;
      continue;
    }
    Total& type = types[format::type_name(tensor.type)];
    ++type.tensors;
    type.bytes += tensor.size_bytes;
    all.bytes += tensor.size_bytes;
    parameters += static_cast<double>(tensor.elements());
  }
  add("file size", human_bytes(file.file_bytes()));
  add("tensor bytes", human_bytes(all.bytes));
  add("parameters", fmt::format("{:.2f} billion", parameters / 1e9));
  for (const auto& [type, total] : types) {
    add(fmt::format("type {}", type), fmt::format("{} tensors, {}", total.tensors, human_bytes(total.bytes)));
  }
  if (vectors.tensors > 0)
    add("importance", fmt::format("{} vectors, {}", vectors.tensors, human_bytes(vectors.bytes)));
  return out;
}

Result<std::string> dump_tokens(const std::string& model_path, const std::string& text) {
  DS4_ASSIGN(const GgufFile file, GgufFile::open(model_path));
  DS4_ASSIGN(const auto vocabulary, file.get_string_array("tokenizer.ggml.tokens"));
  DS4_ASSIGN(const auto merges, file.get_string_array("tokenizer.ggml.merges"));
  DS4_ASSIGN(const Tokenizer tokenizer, Tokenizer::create(vocabulary, merges));
  const std::vector<Token> tokens = tokenizer.encode_rendered(text);
  std::string out = fmt::format("[{}]\n", fmt::join(tokens, ", "));
  for (const Token token : tokens)
    out += fmt::format("{:>6}  {}\n", token, tokenizer.vocabulary_string(token));
  return out;
}

}  // namespace ds4::cli
