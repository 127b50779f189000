#include "grammar/regex.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "text/utf8.hpp"

namespace ds4::grammar {
namespace {

// What anchors match: marks that stand before and behind the text while the automaton is made.
constexpr uint32_t kTextBegin = kLastCharacter + 1;
constexpr uint32_t kTextEnd = kLastCharacter + 2;

constexpr size_t kMostPatternBytes = 4096;
constexpr size_t kMostPatternDfaStates = 5000;
constexpr size_t kMostNfaStates = 20000;
constexpr int kMostNesting = 64;
constexpr uint32_t kMostRepetitions = 1000;

struct Range {
  uint32_t first = 0, last = 0;
};
using CharacterSet = std::vector<Range>;

CharacterSet normalized(CharacterSet set) {
  std::sort(set.begin(), set.end(), [](Range a, Range b) { return a.first < b.first; });
  CharacterSet result;
  for (const Range range : set) {
    if (!result.empty() && range.first <= result.back().last + 1) {
      result.back().last = std::max(result.back().last, range.last);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

CharacterSet inverted(const CharacterSet& set) {
  CharacterSet result;
  uint32_t next = 0;
  for (const Range range : normalized(set)) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCharacter) result.push_back({next, kLastCharacter});
  return result;
}

const CharacterSet kDigits{{'0', '9'}};
const CharacterSet kWordCharacters{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterSet kSpaces{{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                           {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                           {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterSet kLineEnds{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

/// A part of the NFA with one entry and one exit.
struct Fragment {
  uint32_t begin = 0, end = 0;
};

/// Recursive descent over the pattern; every repetition parses its operand once per copy. A problem is noted
/// once, and parsing then runs to the end without effect.
class PatternReader {
 public:
  explicit PatternReader(std::string_view pattern) : pattern_(pattern) {}

  Result<Dfa> read() {
    if (pattern_.size() > kMostPatternBytes) {
      return fail(ErrorCode::unsupported, "a pattern of more than {} bytes", kMostPatternBytes);
    }
    // Anything may stand around what is found, the marks included.
    nfa_.states[0].edges.push_back({0, kTextEnd, 0});
    const Fragment found = alternatives(0);
    if (problem_.empty() && position_ < pattern_.size()) problem_ = "an unmatched ')'";
    if (!problem_.empty()) return fail(ErrorCode::unsupported, "{}", problem_);
    nfa_.states[0].jumps.push_back(found.begin);
    nfa_.states[found.end].accepting = true;
    nfa_.states[found.end].edges.push_back({0, kTextEnd, found.end});
    const auto marked = determinize(nfa_, kMostPatternDfaStates);
    if (!marked) return fail(ErrorCode::unsupported, "a pattern that is too complex");
    return without_marks(*marked);
  }

 private:
  static uint32_t target_of(const Dfa::State& state, uint32_t character) {
    for (const Dfa::Edge& edge : state.edges) {
      if (edge.first <= character && character <= edge.last) return edge.target;
    }
    return kNoTarget;
  }

  /// The strings that are accepted between the two marks.
  static Result<Dfa> without_marks(const Dfa& marked) {
    if (marked.empty()) return Dfa{};
    Nfa nfa;
    for (const Dfa::State& state : marked.states) {
      Nfa::State& copy = nfa.states.emplace_back();
      for (const Dfa::Edge& edge : state.edges) {
        if (edge.first > kLastCharacter) continue;
        copy.edges.push_back({edge.first, std::min(edge.last, kLastCharacter), edge.target + 1});
      }
      const uint32_t end = target_of(state, kTextEnd);
      copy.accepting = end != kNoTarget && marked.states[end].accepting;
    }
    const uint32_t begin = target_of(marked.states[0], kTextBegin);
    if (begin == kNoTarget) return Dfa{};
    nfa.states[0].jumps.push_back(begin + 1);
    auto dfa = determinize(nfa, kMostPatternDfaStates);
    if (!dfa) return fail(ErrorCode::unsupported, "a pattern that is too complex");
    return *std::move(dfa);
  }

  bool at_end() const { return position_ >= pattern_.size() || !problem_.empty(); }
  char peek() const { return at_end() ? '\0' : pattern_[position_]; }
  bool take(std::string_view text) {
    if (at_end() || pattern_.substr(position_, text.size()) != text) return false;
    position_ += text.size();
    return true;
  }
  void refuse(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  uint32_t add_state() {
    if (nfa_.states.size() < kMostNfaStates) return nfa_.add_state();
    refuse("a pattern that is too complex");
    return 0;
  }
  void jump(uint32_t from, uint32_t to) { nfa_.states[from].jumps.push_back(to); }

  Fragment empty() {
    const uint32_t state = add_state();
    return {state, state};
  }

  Fragment of_set(const CharacterSet& set) {
    const Fragment fragment{add_state(), add_state()};
    for (const Range range : set) {
      nfa_.states[fragment.begin].edges.push_back({range.first, range.last, fragment.end});
    }
    return fragment;
  }

  Fragment alternatives(int depth) {
    if (depth > kMostNesting) refuse("a pattern nested too deeply");
    const Fragment result{add_state(), add_state()};
    do {
      const Fragment branch = sequence(depth);
      jump(result.begin, branch.begin);
      jump(branch.end, result.end);
    } while (take("|"));
    return result;
  }

  Fragment sequence(int depth) {
    Fragment result = empty();
    while (!at_end() && peek() != '|' && peek() != ')') {
      const Fragment next = repeated(depth);
      jump(result.end, next.begin);
      result.end = next.end;
    }
    return result;
  }

  struct Repetition {
    uint32_t least = 1, most = 1;
  };

  uint32_t number() {
    uint32_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min<uint32_t>(value * 10 + static_cast<uint32_t>(peek() - '0'), 1'000'000);
      ++position_;
    }
    return value;
  }

  Repetition repetition() {
    Repetition result;
    if (take("*")) {
      result = {0, kNoTarget};
    } else if (take("+")) {
      result = {1, kNoTarget};
    } else if (take("?")) {
      result = {0, 1};
    } else if (take("{")) {
      if (peek() < '0' || peek() > '9') refuse("a '{' that is not a repetition");
      result.least = result.most = number();
      if (take(",")) result.most = peek() == '}' ? kNoTarget : number();
      if (!take("}")) refuse("a '{' that is not a repetition");
      if (result.most < result.least) refuse("a repetition whose bounds are in the wrong order");
      if (result.least > kMostRepetitions || (result.most != kNoTarget && result.most > kMostRepetitions)) {
        refuse(fmt::format("a repetition of more than {}", kMostRepetitions));
      }
    } else {
      return result;
    }
    take("?");  // a lazy repetition finds the same strings
    return result;
  }

  /// One copy of the operand at `begin`, leaving the position behind it.
  Fragment copy_of(size_t begin, int depth) {
    position_ = begin;
    return atom(depth);
  }

  Fragment repeated(int depth) {
    const size_t begin = position_;
    Fragment result = atom(depth);
    const size_t operand_end = position_;
    const Repetition times = repetition();
    const size_t end = position_;
    if (times.least == 1 && times.most == 1) return result;
    // The first copy is used up by the first repetition there is, so that most operands are parsed once.
    Fragment next = result;
    bool spare = true;
    const auto copy = [&] {
      if (!spare) next = copy_of(begin, depth);
      spare = false;
      return next;
    };
    result = empty();
    for (uint32_t i = 0; i < times.least && problem_.empty(); ++i) {
      const Fragment part = copy();
      jump(result.end, part.begin);
      result.end = part.end;
    }
    if (times.most == kNoTarget) {
      const Fragment part = copy();
      const uint32_t hub = add_state();
      jump(result.end, hub);
      jump(hub, part.begin);
      jump(part.end, hub);
      result.end = hub;
    } else if (times.most > times.least) {
      const uint32_t exit = add_state();
      for (uint32_t i = times.least; i < times.most && problem_.empty(); ++i) {
        const Fragment part = copy();
        jump(result.end, exit);
        jump(result.end, part.begin);
        result.end = part.end;
      }
      jump(result.end, exit);
      result.end = exit;
    }
    position_ = problem_.empty() ? end : operand_end;
    return result;
  }

  Fragment atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return of_set(bracket());
    if (take("^")) return of_set({{kTextBegin, kTextBegin}});
    if (take("$")) return of_set({{kTextEnd, kTextEnd}});
    if (take(".")) return of_set(inverted(kLineEnds));
    if (take("\\")) return of_set(escape(false));
    if (peek() == '*' || peek() == '+' || peek() == '?' || peek() == '{') {
      refuse("a repetition of nothing");
      return empty();
    }
    const uint32_t character = literal();
    return of_set({{character, character}});
  }

  Fragment group(int depth) {
    if (take("?")) {
      if (take("<") && peek() != '=' && peek() != '!') {
        while (!at_end() && peek() != '>') ++position_;
        if (!take(">")) refuse("a group whose name does not end");
      } else if (!take(":")) {
        refuse("look-around or flags inside a pattern");
      }
    }
    const Fragment inside = alternatives(depth + 1);
    if (!take(")")) refuse("an unmatched '('");
    return inside;
  }

  uint32_t literal() {
    if (at_end()) {
      refuse("a pattern that ends too early");
      return 0;
    }
    const text::CodePoint character = text::code_point_at(pattern_, position_);
    position_ += character.length_bytes;
    if (character.value == text::kInvalidByte) refuse("a pattern that is not UTF-8");
    return character.value > kLastCharacter ? 0 : static_cast<uint32_t>(character.value);
  }

  uint32_t hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      const char c = peek();
      const bool digit = c >= '0' && c <= '9';
      const auto letter = static_cast<char>(c | 0x20);
      if (!digit && (letter < 'a' || letter > 'f')) {
        refuse("an escape sequence without its hexadecimal digits");
        return 0;
      }
      value = value * 16 + static_cast<uint32_t>(digit ? c - '0' : letter - 'a' + 10);
      ++position_;
    }
    return value;
  }

  uint32_t unicode_escape() {
    uint32_t value = 0;
    if (take("{")) {
      size_t digits = pattern_.find('}', position_);
      digits = digits == std::string_view::npos ? 0 : digits - position_;
      if (digits == 0 || digits > 6) refuse("an escape sequence without its hexadecimal digits");
      value = hexadecimal(digits);
      take("}");
    } else {
      value = hexadecimal(4);
      if (value >= 0xD800 && value < 0xDC00 && take("\\u")) {
        value = 0x10000 + ((value - 0xD800) << 10) + (hexadecimal(4) - 0xDC00);
      }
    }
    if (value > kLastCharacter) refuse("a character beyond U+10FFFF");
    return std::min(value, kLastCharacter);
  }

  /// Behind the backslash.
  CharacterSet escape(bool in_bracket) {
    const uint32_t character = literal();
    switch (character) {
      case 'd':
        return kDigits;
      case 'D':
        return inverted(kDigits);
      case 'w':
        return kWordCharacters;
      case 'W':
        return inverted(kWordCharacters);
      case 's':
        return kSpaces;
      case 'S':
        return inverted(kSpaces);
      case 't':
        return {{'\t', '\t'}};
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x': {
        const uint32_t value = hexadecimal(2);
        return {{value, value}};
      }
      case 'u': {
        const uint32_t value = unicode_escape();
        return {{value, value}};
      }
      default:
        break;
    }
    const auto is_between = [&](char first, char last) {
      return character >= static_cast<uint32_t>(first) && character <= static_cast<uint32_t>(last);
    };
    if (character == '0' && (peek() < '0' || peek() > '9')) return {{0, 0}};
    if (character == 'b' && in_bracket) return {{'\b', '\b'}};
    if (is_between('a', 'z') || is_between('A', 'Z') || is_between('0', '9')) {
      refuse(fmt::format("the escape sequence '\\{}'", static_cast<char>(character)));
    }
    return {{character, character}};
  }

  /// Behind the opening bracket.
  CharacterSet bracket() {
    const bool invert = take("^");
    CharacterSet set;
    while (!at_end() && peek() != ']') {
      const CharacterSet first = bracket_member();
      const bool single = first.size() == 1 && first[0].first == first[0].last;
      const bool range =
          single && peek() == '-' && position_ + 1 < pattern_.size() && pattern_[position_ + 1] != ']';
      if (!range) {
        set.insert(set.end(), first.begin(), first.end());
        continue;
      }
      take("-");
      const CharacterSet last = bracket_member();
      if (last.size() != 1 || last[0].first != last[0].last || last[0].first < first[0].first) {
        refuse("a range of characters whose ends are not in order");
        break;
      }
      set.push_back({first[0].first, last[0].first});
    }
    if (!take("]")) refuse("an unmatched '['");
    return invert ? inverted(set) : normalized(std::move(set));
  }

  CharacterSet bracket_member() {
    if (take("\\")) return escape(true);
    const uint32_t character = literal();
    return {{character, character}};
  }

  static constexpr uint32_t kNoTarget = 0xFFFFFFFF;

  std::string_view pattern_;
  size_t position_ = 0;
  std::string problem_;
  Nfa nfa_;
};

}  // namespace

Result<Dfa> dfa_of_pattern(std::string_view pattern) {
  return PatternReader(pattern).read();
}

}  // namespace ds4::grammar
