// The format of official.vec: lines of words.
//   case ID CTX STEPS PROMPT_FILE
//   step INDEX SELECTED_HEX COUNT      (STEPS times)
//   top TOKEN_HEX LOGPROB              (COUNT times)
//   end
// Empty lines and lines that begin with # are skipped.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "recorded_reply.hpp"

namespace ds4::vectors {
namespace {

/// Of an id, which is part of a file's name.
constexpr std::string_view id_characters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
constexpr uint64_t max_context_tokens = 1 << 20;

class Parser {
 public:
  Parser(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Result<std::vector<RecordedCase>> run() {
    std::vector<RecordedCase> cases;
    while (next_line()) {
      DS4_ASSIGN(RecordedCase recorded, read_case());
      const auto same = [&](const RecordedCase& other) { return other.id == recorded.id; };
      if (std::any_of(cases.begin(), cases.end(), same))
        return wrong("there are two cases '{}'", recorded.id);
      cases.push_back(std::move(recorded));
    }
    if (cases.empty()) return fail(ErrorCode::format, "{}: there is no case in it", name_);
    return cases;
  }

 private:
  /// Goes to the next line that says something and splits it; false at the end.
  bool next_line() {
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      const std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++number_;
      words_.clear();
      for (size_t begin = 0; begin < line.size();) {
        const size_t stop = std::min(line.find(' ', begin), line.size());
        if (stop > begin) words_.push_back(line.substr(begin, stop - begin));
        begin = stop + 1;
      }
      if (!words_.empty() && words_[0][0] != '#') return true;
    }
    words_.clear();
    return false;
  }

  template <class... Args>
  Error wrong(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::format, "{}:{}: {}", name_, number_,
                fmt::format(text, std::forward<Args>(args)...));
  }

  Result<void> expect(std::string_view keyword, size_t values) const {
    if (words_.empty()) return wrong("the file ends where '{}' should be", keyword);
    if (words_[0] != keyword) return wrong("{} where '{}' should be", quote(words_[0]), keyword);
    if (words_.size() != values + 1) {
      return wrong("'{}' has {} values, not {}", keyword, values, words_.size() - 1);
    }
    return {};
  }

  Result<uint64_t> count(std::string_view word, uint64_t least, uint64_t most) const {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < least || value > most) {
      return wrong("{} is not a number from {} to {}", quote(word), least, most);
    }
    return value;
  }

  Result<std::string> hex(std::string_view word) const {
    if (word.size() % 2 != 0 || word.size() > 2 * max_token_bytes) {
      return wrong("{} is not the hexadecimal form of 1 to {} bytes", quote(word), max_token_bytes);
    }
    std::string bytes;
    for (size_t i = 0; i < word.size(); i += 2) {
      unsigned value = 0;
      const auto [end, error] = std::from_chars(word.data() + i, word.data() + i + 2, value, 16);
      if (error != std::errc() || end != word.data() + i + 2) {
        return wrong("{} is not hexadecimal", quote(word));
      }
      bytes.push_back(static_cast<char>(value));
    }
    return bytes;
  }

  Result<float> logprob(std::string_view word) const {
    float value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value) || value > 0) {
      return wrong("{} is not the logarithm of a probability", quote(word));
    }
    return value;
  }

  Result<RecordedCase> read_case() {
    DS4_TRY(expect("case", 4));
    RecordedCase recorded;
    recorded.id = words_[1];
    if (recorded.id.find_first_not_of(id_characters) != std::string::npos) {
      return wrong("{} is not the name of a case", quote(words_[1]));
    }
    DS4_ASSIGN(recorded.context, count(words_[2], 2, max_context_tokens));
    DS4_ASSIGN(const uint64_t steps, count(words_[3], 1, max_steps));
    const std::string_view path = words_[4];
    recorded.prompt_file = path.substr(path.rfind('/') + 1);
    if (recorded.prompt_file.empty() || recorded.prompt_file.front() == '.') {
      return wrong("{} is not the name of a prompt", quote(path));
    }
    for (uint64_t i = 0; i < steps; ++i) {
      next_line();
      DS4_ASSIGN(RecordedStep step, read_step(i));
      recorded.steps.push_back(std::move(step));
    }
    next_line();
    DS4_TRY(expect("end", 0));
    return recorded;
  }

  Result<RecordedStep> read_step(uint64_t index) {
    DS4_TRY(expect("step", 3));
    DS4_ASSIGN(const uint64_t told, count(words_[1], 0, max_steps - 1));
    if (told != index) return wrong("step {} where step {} should be", told, index);
    RecordedStep step;
    DS4_ASSIGN(step.selected, hex(words_[2]));
    DS4_ASSIGN(const uint64_t top, count(words_[3], 0, max_top));
    for (uint64_t i = 0; i < top; ++i) {
      next_line();
      DS4_TRY(expect("top", 2));
      RecordedToken token;
      DS4_ASSIGN(token.bytes, hex(words_[1]));
      DS4_ASSIGN(token.logprob, logprob(words_[2]));
      step.top.push_back(std::move(token));
    }
    return step;
  }

  std::string_view rest_;
  const std::string& name_;
  size_t number_ = 0;
  std::vector<std::string_view> words_;
};

}  // namespace

Result<std::vector<RecordedCase>> parse_cases(std::string_view text, const std::string& name) {
  return Parser(text, name).run();
}

}  // namespace ds4::vectors
