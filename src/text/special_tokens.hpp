// The seven spellings that structure a conversation, and where they occur in a text.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "ds4/tokenizer.hpp"

namespace ds4::text {

// U+FF5C stands between the angle brackets, U+2581 between the words.
inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

struct SpecialSpelling {
  std::string_view text;
  Token SpecialTokens::* id;
};

/// None of them is a prefix of another, so the order does not matter.
inline constexpr std::array<SpecialSpelling, 7> kSpecialSpellings{{
    {kBos, &SpecialTokens::bos},
    {kEos, &SpecialTokens::eos},
    {kUser, &SpecialTokens::user},
    {kAssistant, &SpecialTokens::assistant},
    {kThinkOpen, &SpecialTokens::think_open},
    {kThinkClose, &SpecialTokens::think_close},
    {kDsml, &SpecialTokens::dsml},
}};

/// Whether the token is one of the seven.
inline bool is_special(const SpecialTokens& special, Token token) {
  for (const SpecialSpelling& spelling : kSpecialSpellings) {
    if (special.*spelling.id == token) return true;
  }
  return false;
}

/// A special spelling found in a text; `spelling` is null if there is none.
struct SpecialMatch {
  size_t position = std::string_view::npos;
  const SpecialSpelling* spelling = nullptr;
};

/// The first special spelling at or after `from`. Linear in the distance to it.
inline SpecialMatch find_special(std::string_view text, size_t from) {
  // All spellings begin with '<' or with the first byte of U+FF5C.
  for (size_t i = text.find_first_of("<\xEF", from); i < text.size();
       i = text.find_first_of("<\xEF", i + 1)) {
    for (const SpecialSpelling& spelling : kSpecialSpellings) {
      if (text.substr(i, spelling.text.size()) == spelling.text) return {i, &spelling};
    }
  }
  return {};
}

}  // namespace ds4::text
