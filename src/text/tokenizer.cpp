#include "ds4/tokenizer.hpp"

#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "text/bpe.hpp"
#include "text/byte_alphabet.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/special_tokens.hpp"
#include "text/utf8.hpp"

namespace ds4 {
namespace {

constexpr std::string_view kFullwidthBar = "\xEF\xBD\x9C";  // U+FF5C

/// The bytes an id stands for. Added tokens are recognised by the fullwidth bar in them; the ones without it
/// are plain ASCII, which the byte alphabet maps to itself.
std::string decoded_bytes(std::string_view vocabulary_string) {
  if (vocabulary_string.find(kFullwidthBar) != std::string_view::npos) return std::string(vocabulary_string);
  std::string bytes;
  for (size_t i = 0; i < vocabulary_string.size();) {
    const text::CodePoint c = text::code_point_at(vocabulary_string, i);
    i += c.length_bytes;
    const int byte = text::byte_of_character(c.value);
    if (byte >= 0) bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

}  // namespace

struct Tokenizer::Impl {
  std::vector<std::string> vocabulary;
  std::vector<std::string> decoded;
  std::unordered_map<std::string_view, Token> ids;  // views into `vocabulary`
  SpecialTokens special;
  text::BytePairMerges merges;

  Token find(std::string_view string) const {
    const auto entry = ids.find(string);
    return entry == ids.end() ? -1 : entry->second;
  }

  void append_plain(std::string_view piece_of_text, std::vector<Token>& tokens) const {
    text::PreTokenizer pieces(piece_of_text);
    for (std::string_view piece; pieces.next(piece);) merges.encode(piece, tokens);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(std::span<const std::string_view> tokens,
                                    std::span<const std::string_view> merges) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<Token>::max())) {
    return fail(ErrorCode::format, "a vocabulary of {} tokens is too large", tokens.size());
  }
  auto impl = std::make_unique<Impl>();
  impl->vocabulary.assign(tokens.begin(), tokens.end());
  impl->decoded.reserve(tokens.size());
  impl->ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string_view string = impl->vocabulary[id];
    impl->decoded.push_back(decoded_bytes(string));
    impl->ids.insert_or_assign(string, static_cast<Token>(id));
  }
  for (const text::SpecialSpelling& spelling : text::kSpecialSpellings) {
    const Token id = impl->find(spelling.text);
    if (id < 0) return fail(ErrorCode::format, "the vocabulary has no token {}", spelling.text);
    impl->special.*spelling.id = id;
  }
  DS4_ASSIGN(impl->merges, text::BytePairMerges::create(tokens.size(), merges, [&](std::string_view string) {
               return impl->find(string);
             }));
  return Tokenizer(std::move(impl));
}

size_t Tokenizer::vocabulary_size() const {
  return impl_->vocabulary.size();
}

const SpecialTokens& Tokenizer::special() const {
  return impl_->special;
}

std::vector<Token> Tokenizer::encode_plain(std::string_view text) const {
  std::vector<Token> tokens;
  impl_->append_plain(text, tokens);
  return tokens;
}

std::vector<Token> Tokenizer::encode_rendered(std::string_view text) const {
  std::vector<Token> tokens;
  size_t begin = 0;
  while (true) {
    const text::SpecialMatch match = text::find_special(text, begin);
    if (match.spelling == nullptr) break;
    impl_->append_plain(text.substr(begin, match.position - begin), tokens);
    tokens.push_back(impl_->special.*match.spelling->id);
    begin = match.position + match.spelling->text.size();
  }
  impl_->append_plain(text.substr(begin), tokens);
  return tokens;
}

std::string Tokenizer::decode(Token token) const {
  if (token < 0 || static_cast<size_t>(token) >= impl_->decoded.size()) return {};
  return impl_->decoded[token];
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string bytes;
  for (const Token token : tokens) {
    if (token >= 0 && static_cast<size_t>(token) < impl_->decoded.size()) bytes += impl_->decoded[token];
  }
  return bytes;
}

std::string_view Tokenizer::vocabulary_string(Token token) const {
  if (token < 0 || static_cast<size_t>(token) >= impl_->vocabulary.size()) return {};
  return impl_->vocabulary[token];
}

Token Tokenizer::find(std::string_view vocabulary_string) const {
  return impl_->find(vocabulary_string);
}

}  // namespace ds4
