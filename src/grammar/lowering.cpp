#include "grammar/lowering.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "text/utf8.hpp"

namespace ds4::grammar {
namespace {

struct ByteRange {
  uint8_t first = 0, last = 0;
  auto operator<=>(const ByteRange&) const = default;
};

/// Byte strings whose n-th byte is in the n-th range, and where they lead.
struct Sequence {
  std::array<ByteRange, 6> bytes{};
  size_t size = 0;
  uint32_t target = 0;

  void push(uint8_t first, uint8_t last) { bytes[size++] = {first, last}; }
  void push(char byte) { push(static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)); }
};

/// The encodings of a range of characters. Ranges are cut so that those of one place in two sequences are the
/// same or do not overlap.
class SequenceList {
 public:
  void add_utf8(uint32_t first, uint32_t last, uint32_t target) {
    // Lengths of the encoding, and the surrogates, which have none.
    constexpr std::array<std::pair<uint32_t, uint32_t>, 5> kBlocks{
        {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, kLastCharacter}}};
    for (const auto& [block_first, block_last] : kBlocks) {
      const uint32_t from = std::max(first, block_first);
      const uint32_t to = std::min(last, block_last);
      if (from <= to) add_block(from, to, target);
    }
  }

  /// With the escape sequences that JSON needs.
  void add_json(uint32_t first, uint32_t last, uint32_t target) {
    uint32_t from = first;
    const auto escape = [&](uint32_t character) {
      if (character < first || character > last) return;
      if (from < character) add_utf8(from, character - 1, target);
      add_escape(character, target);
      from = character + 1;
    };
    for (uint32_t control = 0; control < 0x20; ++control) escape(control);
    escape('"');
    escape('\\');
    if (from <= last) add_utf8(from, last, target);
  }

  /// For strings in which escape sequences are read elsewhere.
  void add_json_plain(uint32_t first, uint32_t last, uint32_t target) {
    constexpr std::array<std::pair<uint32_t, uint32_t>, 3> kPlain{
        {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, kLastCharacter}}};
    for (const auto& [plain_first, plain_last] : kPlain) {
      const uint32_t from = std::max(first, plain_first);
      const uint32_t to = std::min(last, plain_last);
      if (from <= to) add_utf8(from, to, target);
    }
  }

  const std::vector<Sequence>& sequences() const { return sequences_; }

 private:
  void add_block(uint32_t first, uint32_t last, uint32_t target) {
    if (first > 0x7F) {
      for (const uint32_t low_bits : {0x3Fu, 0xFFFu, 0x3FFFFu}) {
        if ((first & ~low_bits) == (last & ~low_bits)) continue;
        if ((first & low_bits) != 0) {
          add_block(first, first | low_bits, target);
          add_block((first | low_bits) + 1, last, target);
          return;
        }
        if ((last & low_bits) != low_bits) {
          add_block(first, (last & ~low_bits) - 1, target);
          add_block(last & ~low_bits, last, target);
          return;
        }
      }
    }
    std::string first_bytes;
    std::string last_bytes;
    text::append_utf8(first_bytes, first);
    text::append_utf8(last_bytes, last);
    Sequence sequence{.target = target};
    for (size_t i = 0; i < first_bytes.size(); ++i) {
      sequence.push(static_cast<uint8_t>(first_bytes[i]), static_cast<uint8_t>(last_bytes[i]));
    }
    sequences_.push_back(sequence);
  }

  void add_escape(uint32_t character, uint32_t target) {
    constexpr std::string_view kShort = "\b\f\n\r\t\"\\";
    constexpr std::string_view kLetters = "bfnrt\"\\";
    Sequence sequence{.target = target};
    sequence.push('\\');
    const size_t place = kShort.find(static_cast<char>(character));
    if (place != std::string_view::npos) {
      sequence.push(kLetters[place]);
    } else {
      for (const char digit : fmt::format("u{:04x}", character)) sequence.push(digit);
    }
    sequences_.push_back(sequence);
  }

  std::vector<Sequence> sequences_;
};

class Lowering {
 public:
  Lowering(AutomatonBuilder& builder, const StringForm& form, uint32_t end)
      : builder_(builder), form_(form), end_(end) {}

  uint32_t run(const Dfa& dfa) {
    for (size_t i = 0; i < dfa.states.size(); ++i) starts_.push_back(add_state());
    for (size_t i = 0; i < dfa.states.size() && !builder_.full(); ++i)
      add_characters(dfa.states[i], starts_[i]);
    add_terminator(dfa);
    if (form_.escapes == StringForm::Escapes::any) add_escapes();
    return starts_[0];
  }

 private:
  uint32_t add_state() {
    const uint32_t state = builder_.add_state();
    builder_.set_counter_range(state, form_.least, form_.most);
    return state;
  }

  /// A byte that begins a character.
  ByteEdge first_edge(uint32_t target, ByteRange range) const {
    ByteEdge edge{.target = target, .first = range.first, .last = range.last};
    if (form_.most != kUnlimited || form_.least > 0) {
      edge.guard = Guard::below;
      edge.limit = form_.most;
    }
    return edge;
  }

  void add_characters(const Dfa::State& state, uint32_t from) {
    SequenceList list;
    for (const Dfa::Edge& edge : state.edges) {
      const uint32_t target = starts_[edge.target];
      if (form_.escapes == StringForm::Escapes::none) list.add_utf8(edge.first, edge.last, target);
      if (form_.escapes == StringForm::Escapes::needed) list.add_json(edge.first, edge.last, target);
      if (form_.escapes == StringForm::Escapes::any) list.add_json_plain(edge.first, edge.last, target);
    }
    std::vector<const Sequence*> all;
    for (const Sequence& sequence : list.sequences()) all.push_back(&sequence);
    for (const auto& [range, target] : group(all, 0)) builder_.add_edge(from, first_edge(target, range));
  }

  using Edges = std::vector<std::pair<ByteRange, uint32_t>>;

  /// The edges that read the sequences from place `place` on; their first `place` bytes are the same.
  Edges group(const std::vector<const Sequence*>& sequences, size_t place) {
    std::map<ByteRange, std::vector<const Sequence*>> by_range;
    for (const Sequence* sequence : sequences) by_range[sequence->bytes[place]].push_back(sequence);
    Edges edges;
    for (const auto& [range, members] : by_range) {
      const bool ends = members.front()->size == place + 1;
      edges.emplace_back(range, ends ? members.front()->target : inner_state(group(members, place + 1)));
    }
    return edges;
  }

  /// A state with these edges; there is only one of the kind.
  uint32_t inner_state(Edges edges) {
    const auto [place, is_new] = inner_states_.try_emplace(std::move(edges), 0);
    if (is_new) {
      place->second = add_state();
      for (const auto& [range, target] : place->first) {
        builder_.add_edge(place->second, {.target = target, .first = range.first, .last = range.last});
      }
    }
    return place->second;
  }

  void add_terminator(const Dfa& dfa) {
    uint32_t behind_first = end_;
    if (form_.terminator.size() > 1) {
      behind_first = builder_.add_state();
      builder_.add_text_to(behind_first, form_.terminator.substr(1), end_);
    }
    for (size_t i = 0; i < dfa.states.size(); ++i) {
      if (!dfa.states[i].accepting) continue;
      if (form_.terminator.empty()) {
        builder_.set_final(starts_[i]);
        continue;
      }
      const auto byte = static_cast<uint8_t>(form_.terminator[0]);
      ByteEdge edge{.target = behind_first, .first = byte, .last = byte};
      if (form_.least > 0) {
        edge.guard = Guard::at_least;
        edge.limit = form_.least;
      }
      builder_.add_edge(starts_[i], edge);
    }
  }

  void add_ranges(uint32_t from, std::string_view pairs, uint32_t target) {
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      builder_.add_edge(from, {.target = target,
                               .first = static_cast<uint8_t>(pairs[i]),
                               .last = static_cast<uint8_t>(pairs[i + 1])});
    }
  }

  uint32_t hex_digits(size_t count, uint32_t target) {
    for (; count > 0; --count) {
      const uint32_t state = add_state();
      add_ranges(state, "09afAF", target);
      target = state;
    }
    return target;
  }

  /// Surrogates come in pairs.
  void add_escapes() {
    const uint32_t start = starts_[0];
    const uint32_t escape = add_state();
    const uint32_t unicode = add_state();
    const uint32_t surrogate = add_state();
    const uint32_t low[4] = {add_state(), add_state(), add_state(), add_state()};
    for (const uint32_t state : starts_) builder_.add_edge(state, first_edge(escape, {'\\', '\\'}));
    add_ranges(escape, "\"\"\\\\//bbffnnrrtt", start);
    builder_.add_byte(escape, 'u', unicode);
    add_ranges(unicode, "09acACefEF", hex_digits(3, start));
    add_ranges(unicode, "ddDD", surrogate);
    add_ranges(surrogate, "07", hex_digits(2, start));
    add_ranges(surrogate, "89abAB", hex_digits(2, low[0]));
    builder_.add_byte(low[0], '\\', low[1]);
    builder_.add_byte(low[1], 'u', low[2]);
    add_ranges(low[2], "ddDD", low[3]);
    add_ranges(low[3], "cfCF", hex_digits(2, start));
  }

  AutomatonBuilder& builder_;
  const StringForm& form_;
  uint32_t end_;
  std::vector<uint32_t> starts_;
  std::map<Edges, uint32_t> inner_states_;
};

}  // namespace

uint32_t lower(AutomatonBuilder& builder, const Dfa& dfa, const StringForm& form, uint32_t end) {
  return Lowering(builder, form, end).run(dfa);
}

}  // namespace ds4::grammar
