#include "checkpoint_tokenizer.hpp"

#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "json_file.hpp"

namespace ds4::quantize {
namespace {

namespace json = boost::json;

// The tokens that the chat format is made of.
constexpr std::string_view required_tokens[] = {
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
};

class TokenizerReader {
 public:
  TokenizerReader(const std::string& path, const json::object& root, uint32_t vocabulary)
      : path_(path), root_(root), vocabulary_(vocabulary) {}

  Result<CheckpointTokenizer> read() {
    DS4_ASSIGN(const json::value* model_value, json_member(path_, root_, "model"));
    if (!model_value->is_object()) return fail(ErrorCode::format, "{}: model must be an object", path_);
    const json::object& model = model_value->get_object();
    DS4_ASSIGN(const std::string_view type, json_string(path_, model, "type"));
    if (type != "BPE")
      return fail(ErrorCode::unsupported, "{}: the model type is {}, but must be \"BPE\"", path_,
                  quote(type));
    result_.tokens.resize(vocabulary_);
    result_.types.assign(vocabulary_, 0);
    DS4_TRY(read_vocabulary(model));
    DS4_TRY(read_added_tokens());
    DS4_TRY(read_merges(model));
    for (std::string_view token : required_tokens) {
      if (std::find(result_.tokens.begin(), result_.tokens.end(), token) == result_.tokens.end())
        return fail(ErrorCode::format, "{}: the special token {} is missing", path_, token);
    }
    fill_gaps();
    return std::move(result_);
  }

 private:
  Result<void> place(std::string_view token, uint64_t id, TokenType type) {
    if (id >= vocabulary_)
      return fail(ErrorCode::format, "{}: token {} has id {}, outside the vocabulary of {}", path_,
                  quote(token), id, vocabulary_);
    if (result_.types[id] != 0 && result_.tokens[id] != token)
      return fail(ErrorCode::format, "{}: tokens {} and {} have the same id {}", path_,
                  quote(result_.tokens[id]), quote(token), id);
    result_.tokens[id] = token;
    result_.types[id] = static_cast<int32_t>(type);
    return {};
  }

  Result<void> read_vocabulary(const json::object& model) {
    DS4_ASSIGN(const json::value* vocabulary, json_member(path_, model, "vocab"));
    if (!vocabulary->is_object()) return fail(ErrorCode::format, "{}: model.vocab must be an object", path_);
    for (const auto& [token, id] : vocabulary->get_object()) {
      if (!id.is_int64() || id.get_int64() < 0)
        return fail(ErrorCode::format, "{}: the id of token {} is not a number", path_, quote(token));
      DS4_TRY(place(token, static_cast<uint64_t>(id.get_int64()), TokenType::normal));
    }
    return {};
  }

  Result<void> read_added_tokens() {
    if (!root_.contains("added_tokens")) return {};
    DS4_ASSIGN(const json::array* added, json_array(path_, root_, "added_tokens"));
    for (const json::value& entry : *added) {
      if (!entry.is_object()) return fail(ErrorCode::format, "{}: added_tokens must hold objects", path_);
      const json::object& token = entry.get_object();
      DS4_ASSIGN(const std::string_view content, json_string(path_, token, "content"));
      DS4_ASSIGN(const uint32_t id, json_uint32(path_, token, "id"));
      DS4_ASSIGN(const bool special, json_bool(path_, token, "special"));
      DS4_TRY(place(content, id, special ? TokenType::control : TokenType::user_defined));
    }
    return {};
  }

  // A merge is "left right", or ["left", "right"] in newer files.
  Result<void> read_merges(const json::object& model) {
    DS4_ASSIGN(const json::array* merges, json_array(path_, model, "merges"));
    result_.merges.reserve(merges->size());
    for (const json::value& merge : *merges) {
      std::string text;
      if (merge.is_string()) {
        text = merge.get_string();
      } else if (merge.is_array() && merge.get_array().size() == 2 && merge.get_array()[0].is_string() &&
                 merge.get_array()[1].is_string()) {
        text = std::string(merge.get_array()[0].get_string()) + " " +
               std::string(merge.get_array()[1].get_string());
      }
      const size_t space = text.find(' ');
      if (space == 0 || space == std::string::npos || space + 1 == text.size() || text.rfind(' ') != space)
        return fail(ErrorCode::format, "{}: merge {} is not a pair of tokens", path_, result_.merges.size());
      result_.merges.push_back(std::move(text));
    }
    return {};
  }

  void fill_gaps() {
    for (uint32_t id = 0; id < vocabulary_; ++id) {
      if (result_.types[id] != 0) continue;
      result_.tokens[id] = fmt::format("[PAD{}]", id);
      result_.types[id] = static_cast<int32_t>(TokenType::unused);
    }
  }

  const std::string& path_;
  const json::object& root_;
  const uint32_t vocabulary_;
  CheckpointTokenizer result_;
};

// A template is one string, or a list of named ones of which "default" counts.
Result<std::optional<std::string>> read_chat_template(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::optional<std::string>{};
  DS4_ASSIGN(const JsonFile file, read_json_object(path));
  const json::value* entry = file.value.get_object().if_contains("chat_template");
  if (!entry || entry->is_null()) return std::optional<std::string>{};
  if (entry->is_string()) return std::optional<std::string>(entry->get_string());
  if (!entry->is_array())
    return fail(ErrorCode::format, "{}: chat_template must be a string or a list", path);
  for (const json::value& item : entry->get_array()) {
    if (!item.is_object()) return fail(ErrorCode::format, "{}: chat_template must hold objects", path);
    DS4_ASSIGN(const std::string_view name, json_string(path, item.get_object(), "name"));
    if (name != "default") continue;
    DS4_ASSIGN(const std::string_view text, json_string(path, item.get_object(), "template"));
    return std::optional<std::string>(text);
  }
  return std::optional<std::string>{};
}

}  // namespace

Result<CheckpointTokenizer> read_checkpoint_tokenizer(const std::string& folder, uint32_t vocabulary) {
  DS4_ASSIGN(const JsonFile file, read_json_object(folder + "/tokenizer.json"));
  DS4_ASSIGN(CheckpointTokenizer tokenizer,
             TokenizerReader(file.path, file.value.get_object(), vocabulary).read());
  DS4_ASSIGN(tokenizer.chat_template, read_chat_template(folder));
  return tokenizer;
}

}  // namespace ds4::quantize
