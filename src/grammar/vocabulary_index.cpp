#include "grammar/vocabulary_index.hpp"

#include <algorithm>
#include <array>

namespace ds4::grammar {
namespace {

bool is_special(const SpecialTokens& special, Token token) {
  const std::array<Token, 6> ids{special.bos,       special.eos,        special.user,
                                 special.assistant, special.think_open, special.think_close};
  return std::find(ids.begin(), ids.end(), token) != ids.end();
}

/// Added tokens are spelled with these marks: placeholders, FIM, tool tags of older models. None of them is
/// text that an answer may hold.
bool looks_special(std::string_view text) {
  return (text.starts_with("<｜") && text.ends_with("｜>")) ||
         (text.starts_with("<|") && text.ends_with("|>") && text.size() > 4);
}

size_t shared_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

VocabularyIndex::VocabularyIndex(const Tokenizer& tokenizer)
    : vocabulary_size_(tokenizer.vocabulary_size()),
      eos_(tokenizer.special().eos),
      dsml_(tokenizer.special().dsml) {
  offsets_.reserve(vocabulary_size_ + 1);
  for (size_t id = 0; id < vocabulary_size_; ++id) {
    offsets_.push_back(static_cast<uint32_t>(text_.size()));
    const auto token = static_cast<Token>(id);
    if (is_special(tokenizer.special(), token)) continue;
    const std::string bytes = tokenizer.decode(token);
    if (looks_special(bytes) || bytes.size() > UINT16_MAX) continue;
    text_ += bytes;
    if (!bytes.empty()) tokens_.push_back(token);
  }
  offsets_.push_back(static_cast<uint32_t>(text_.size()));
  std::stable_sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) { return bytes(a) < bytes(b); });
  build_tree();
}

std::string_view VocabularyIndex::bytes(Token token) const {
  if (token < 0 || static_cast<size_t>(token) >= vocabulary_size_) return {};
  const uint32_t begin = offsets_[static_cast<size_t>(token)];
  return std::string_view(text_).substr(begin, offsets_[static_cast<size_t>(token) + 1] - begin);
}

std::vector<Token> VocabularyIndex::spell(std::string_view text, bool with_dsml) const {
  std::vector<Token> spelled;
  while (!text.empty()) {
    Token longest = -1;
    size_t length = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t end = nodes_[node].end;
      for (++node; node < end && nodes_[node].byte != static_cast<uint8_t>(text[i]);
           node = nodes_[node].end) {
      }
      if (node >= end) break;
      for (uint32_t at = nodes_[node].tokens_begin; at < nodes_[node + 1].tokens_begin; ++at) {
        if (tokens_[at] == dsml_ && !with_dsml) continue;
        longest = tokens_[at];
        length = i + 1;
      }
    }
    if (longest < 0) return {};
    spelled.push_back(longest);
    text.remove_prefix(length);
  }
  return spelled;
}

void VocabularyIndex::build_tree() {
  std::vector<uint32_t> path{0};  // nodes from the root to the last one made
  nodes_.push_back({});
  const auto close_down_to = [&](size_t depth) {
    for (; path.size() > depth + 1; path.pop_back()) {
      nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    }
  };
  std::string_view previous;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view text = bytes(tokens_[i]);
    const size_t shared = shared_prefix(previous, text);
    close_down_to(shared);
    for (size_t depth = shared; depth < text.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.tokens_begin = static_cast<uint32_t>(i),
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(text[depth])});
    }
    previous = text;
    const auto is_lead = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
    most_characters_ =
        std::max(most_characters_, static_cast<size_t>(std::count_if(text.begin(), text.end(), is_lead)));
    const auto is_opening = [](char c) { return c == '{' || c == '['; };
    most_openings_ =
        std::max(most_openings_, static_cast<size_t>(std::count_if(text.begin(), text.end(), is_opening)));
  }
  close_down_to(0);
  nodes_[0].end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.end = static_cast<uint32_t>(nodes_.size()) + 1,
                    .tokens_begin = static_cast<uint32_t>(tokens_.size())});
}

}  // namespace ds4::grammar
