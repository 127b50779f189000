#include "text/gguf_tokenizer.hpp"

#include "base/error.hpp"

namespace ds4 {

Result<Tokenizer> load_tokenizer(const format::GgufFile& file, std::string* notice) {
  constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
  constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
  constexpr std::string_view kPreKey = "tokenizer.ggml.pre";

  DS4_ASSIGN(const auto tokens, file.get_string_array(kTokensKey));
  DS4_ASSIGN(const auto merges, file.get_string_array(kMergesKey));
  auto tokenizer = Tokenizer::create(tokens, merges);
  if (!tokenizer) {
    return fail(tokenizer.error().code, "{}: {} (keys {} and {})", file.path(), tokenizer.error().message,
                kTokensKey, kMergesKey);
  }
  if (notice != nullptr) {
    const auto pre = file.get_string(kPreKey);
    const std::string_view name = pre ? *pre : std::string_view();
    if (name != "joyai-llm" && name != "deepseek-v3") {
      *notice = fmt::format("{}: {} is \"{}\"; text is cut by the DeepSeek-V3 rules all the same",
                            file.path(), kPreKey, name);
    }
  }
  return tokenizer;
}

}  // namespace ds4
