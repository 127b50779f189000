#include "grammar/numbers.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/regex.hpp"

namespace ds4::grammar {
namespace {

std::optional<Dfa> pattern(std::string_view text) {
  auto dfa = dfa_of_pattern(text);
  if (!dfa) return std::nullopt;
  return std::move(dfa).value();
}

/// A bound taken apart: no leading zeros before the point ("0" is ""), no trailing ones behind it.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;

  explicit Decimal(std::string_view text) {
    negative = text.starts_with('-');
    if (negative) text.remove_prefix(1);
    const size_t point = std::min(text.find('.'), text.size());
    whole = text.substr(0, point);
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
    if (point < text.size()) fraction = text.substr(point + 1);
    fraction.erase(fraction.find_last_not_of('0') + 1);
    if (whole.empty() && fraction.empty()) negative = false;
  }
};

/// How a number that is being read compares to a bound, as far as it has been read. The absolute values are
/// compared digit by digit; of the whole parts, `order` (-1, 0, 1) holds only if they have the same number of
/// digits.
struct Comparison {
  enum class Part : uint8_t { begin, sign, whole, point, fraction };
  Part part = Part::begin;
  bool negative = false;
  bool zero = true;  // all digits so far
  int order = 0;
  size_t digits = 0;  // of this part, as far as they matter

  auto operator<=>(const Comparison&) const = default;
};

/// Follows a number in the notation of JSON without an exponent; what is no number need not be noticed.
class Comparer {
 public:
  using Part = Comparison::Part;

  explicit Comparer(const Decimal& bound) : bound_(bound) {}

  std::optional<Comparison> next(Comparison at, char character) const {
    if (character == '-') {
      if (at.part != Part::begin) return std::nullopt;
      at.part = Part::sign;
      at.negative = true;
      return at;
    }
    if (character == '.') {
      if (at.part != Part::whole) return std::nullopt;
      at.order = order_of_whole(at);
      at.part = Part::point;
      at.digits = 0;
      return at;
    }
    if (at.part == Part::begin || at.part == Part::sign) at.part = Part::whole;
    if (at.part == Part::point) at.part = Part::fraction;
    at.zero = at.zero && character == '0';
    if (at.part == Part::whole && at.digits == 0 && character == '0') return at;
    const std::string& digits = at.part == Part::whole ? bound_.whole : bound_.fraction;
    const char other = at.digits < digits.size() ? digits[at.digits] : '0';
    if (at.order == 0 && character != other) at.order = character < other ? -1 : 1;
    at.digits = std::min(at.digits + 1, digits.size() + 1);
    return at;
  }

  /// -1, 0 or 1; nothing where no number can end.
  std::optional<int> order(const Comparison& at) const {
    if (at.part != Part::whole && at.part != Part::fraction) return std::nullopt;
    const bool negative = at.negative && !at.zero;
    if (negative != bound_.negative) return negative ? -1 : 1;
    int order = at.part == Part::whole ? order_of_whole(at) : at.order;
    const size_t fraction_digits = at.part == Part::whole ? 0 : at.digits;
    if (order == 0 && fraction_digits < bound_.fraction.size()) order = -1;
    return negative ? -order : order;
  }

 private:
  int order_of_whole(const Comparison& at) const {
    if (at.digits != bound_.whole.size()) return at.digits < bound_.whole.size() ? -1 : 1;
    return at.order;
  }

  const Decimal& bound_;
};

/// The numbers on one side of the bound. `side`: 1 for those above it, -1 for those below.
std::optional<Dfa> beyond(const Bound& bound, int side) {
  const Decimal decimal(bound.decimal);
  const Comparer comparer(decimal);
  std::map<Comparison, uint32_t> numbers{{Comparison{}, 0}};
  std::vector<Comparison> places{Comparison{}};
  Dfa dfa;
  for (size_t number = 0; number < places.size(); ++number) {
    if (places.size() > kMostDfaStates) return std::nullopt;
    const Comparison at = places[number];
    Dfa::State state;
    const auto order = comparer.order(at);
    state.accepting = order && (*order == side || (*order == 0 && !bound.exclusive));
    for (const char character : std::string_view("-.0123456789")) {
      const auto next = comparer.next(at, character);
      if (!next) continue;
      const auto [place, is_new] = numbers.try_emplace(*next, static_cast<uint32_t>(places.size()));
      if (is_new) places.push_back(*next);
      const auto value = static_cast<uint32_t>(static_cast<unsigned char>(character));
      state.edges.push_back({value, value, place->second});
    }
    dfa.states.push_back(std::move(state));
  }
  return dfa;
}

/// Integers that the divisor divides: one state per remainder, and the start.
Dfa multiples_of(uint32_t divisor) {
  Dfa dfa;
  dfa.states.resize(divisor + 1);
  dfa.states[0].edges.push_back({'-', '-', 0});
  for (uint32_t digit = 0; digit < 10; ++digit) {
    dfa.states[0].edges.push_back({'0' + digit, '0' + digit, 1 + digit % divisor});
    for (uint32_t remainder = 0; remainder < divisor; ++remainder) {
      dfa.states[1 + remainder].edges.push_back(
          {'0' + digit, '0' + digit, 1 + (remainder * 10 + digit) % divisor});
    }
  }
  dfa.states[1].accepting = true;
  return dfa;
}

}  // namespace

std::optional<Dfa> dfa_of_numbers(const NumberRules& rules) {
  // 20 digits at most before the point, and behind it: no number overflows a double.
  std::string text = "^-?(?:0|[1-9]\\d{0,19})";
  if (!rules.integer) text += "(?:\\.\\d{1,20})?";
  if (!rules.integer && rules.free()) text += "(?:[eE][+-]?\\d{1,2})?";
  auto dfa = pattern(text + "$");
  if (rules.free() || !dfa) return dfa;
  const auto signed_zero = pattern("^-0(?:\\.0*)?$");
  const auto others = signed_zero ? complement(*signed_zero) : std::nullopt;
  if (!others) return std::nullopt;
  dfa = intersect(*dfa, *others);
  const auto restrict = [&](const std::optional<Dfa>& other) {
    dfa = dfa && other ? intersect(*dfa, *other) : std::nullopt;
  };
  for (const Bound& bound : rules.least) restrict(beyond(bound, 1));
  for (const Bound& bound : rules.most) restrict(beyond(bound, -1));
  if (rules.multiple_of) restrict(multiples_of(*rules.multiple_of));
  return dfa;
}

}  // namespace ds4::grammar
