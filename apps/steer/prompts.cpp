#include "prompts.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cctype>

#include "base/error.hpp"
#include "common/console.hpp"

namespace ds4::steer {
namespace {

std::string trimmed(const std::string& text) {
  constexpr const char* space = " \t\r";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// Whether text[begin, end) is a part of a longer number: "-5", "1.5" and "1,021" do not contain 5, 1 or 21.
bool inside_number(std::string_view text, size_t begin, size_t end) {
  const auto separates = [](char c) { return c == '.' || c == ','; };
  if (is_digit(text[begin]) && begin > 0) {
    if (text[begin - 1] == '-') return true;
    if (begin > 1 && separates(text[begin - 1]) && is_digit(text[begin - 2])) return true;
  }
  return is_digit(text[end - 1]) && end + 1 < text.size() && separates(text[end]) && is_digit(text[end + 1]);
}

std::string lowered(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

Result<std::vector<Prompt>> parse_prompts(const std::string& content, const std::string& name) {
  std::vector<Prompt> prompts;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string line = trimmed(content.substr(begin, end - begin));
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    const size_t tab = line.find('\t');
    Prompt prompt{trimmed(line.substr(0, tab)), ""};
    if (tab != std::string::npos) prompt.expected = trimmed(line.substr(tab));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return fail(ErrorCode::format, "{}: there is no prompt in it", name);
  return prompts;
}

Result<std::vector<Prompt>> read_prompts(const std::string& path) {
  DS4_ASSIGN(const std::string content, cli::read_file(path));
  return parse_prompts(content, path);
}

std::string prompts_hash(const std::vector<Prompt>& good, const std::vector<Prompt>& bad) {
  std::string all;
  for (const Prompt& prompt : good) all += prompt.text + "\n";
  all += "\n";
  for (const Prompt& prompt : bad) all += prompt.text + "\n";
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

RenderedTokens render(const Tokenizer& tokenizer, const std::string& system, const std::string& message,
                      ThinkMode think) {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back({.role = Role::system, .content = system});
  messages.push_back({.role = Role::user, .content = message});
  RenderedTokens rendered;
  rendered.tokens = render_chat(messages, {.think = think}).encode(tokenizer);
  const auto user = std::find(rendered.tokens.begin(), rendered.tokens.end(), tokenizer.special().user);
  rendered.message_begin = static_cast<size_t>(user - rendered.tokens.begin());
  return rendered;
}

bool contains_expected(const std::string& answer, const std::string& expected) {
  const std::string text = lowered(answer), wanted = lowered(expected);
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) {
    const size_t end = at + wanted.size();
    const bool whole = (at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]));
    if (whole && !inside_number(text, at, end)) return true;
  }
  return false;
}

}  // namespace ds4::steer
