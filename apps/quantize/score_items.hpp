// What a model is scored on: texts, rendered conversations, and continuations that are known.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::quantize {

enum class ItemKind : uint32_t {
  text = 0,          // how likely is what follows the first tokens
  continuation = 1,  // the same, and how far does greedy decoding go along with it
};

struct ScoreItem {
  std::string id;
  ItemKind kind = ItemKind::text;
  std::vector<Token> tokens;
  size_t begin = 1;  // the first token that is scored; those before it are given, at least one

  size_t scored() const { return tokens.size() - begin; }
};

/// As many tokens of a plain text are given as `ds4 --perplexity-file` gives.
inline constexpr size_t given_text_tokens = 32;

/// A file of plain text: special tokens spelled in it stay text. Errors: too short.
Result<ScoreItem> read_text_item(const std::string& path, const Tokenizer& tokenizer);

/// A file of rendered conversations, divided as calibration files are (docs/importance.md §1). Their first
/// token is given. Those of fewer than two tokens are left out. Special tokens spelled in them count only if
/// they `are_rendered`; else `spells_special` tells that there were some.
Result<std::vector<ScoreItem>> read_dataset_items(const std::string& path, const Tokenizer& tokenizer,
                                                  bool are_rendered, bool& spells_special);

/// manifest.tsv: lines of an id, a file with a question, a file with the answer, and possibly more, divided
/// by tabs; names are relative to the manifest. Questions are rendered without system text and reasoning.
Result<std::vector<ScoreItem>> read_continuations(const std::string& path, const Tokenizer& tokenizer);

/// A question to be continued.
struct Question {
  std::string id, text;
};
/// Lines of JSON with "id" and "prompt".
Result<std::vector<Question>> read_questions(const std::string& path);
/// A question as it is put to the model.
std::vector<Token> question_tokens(const std::string& text, const Tokenizer& tokenizer);

/// Cuts every item after `scored` scored tokens.
void cut_items(std::vector<ScoreItem>& items, size_t scored);

/// Tells vocabularies apart: ids mean the same where it is equal.
std::string vocabulary_fingerprint(const Tokenizer& tokenizer);

}  // namespace ds4::quantize
