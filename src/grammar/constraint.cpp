#include "grammar/constraint.hpp"

#include <algorithm>
#include <utility>

#include "grammar/automaton.hpp"
#include "grammar/machine.hpp"
#include "grammar/mask_cache.hpp"
#include "grammar/shortest_end.hpp"

namespace ds4::grammar {
namespace {

/// Frames that are kept before unused ones are looked for.
constexpr size_t kFewFrames = 256;
constexpr size_t kMostEndBytes = 4096;

}  // namespace

Constraint::Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const VocabularyIndex> index)
    : grammar_(std::move(grammar)), index_(std::move(index)), cache_(std::make_shared<MaskCache>()) {
  Machine machine(grammar_->automaton(), stacks_);
  const Configuration start{.state = grammar_->automaton().start};
  complete_ = machine.close(start, configurations_).at_bottom;
}

bool Constraint::accept(Token token) {
  if (ended_) return false;
  if (token == index_->eos()) {
    ended_ = complete_;
    return ended_;
  }
  if (token == index_->dsml() && !grammar_->automaton().uses_dsml) return false;
  const std::string_view bytes = index_->bytes(token);
  return !bytes.empty() && accept_bytes(bytes);
}

bool Constraint::accept_bytes(std::string_view bytes) {
  if (ended_) return bytes.empty();
  const size_t stack_size = stacks_.size();
  Machine machine(grammar_->automaton(), stacks_);
  std::vector<Configuration> pool = configurations_;
  Machine::Set set{.begin = 0, .end = pool.size(), .at_bottom = complete_};
  for (const char byte : bytes) {
    const Machine::Set next = machine.step(set, static_cast<uint8_t>(byte), pool);
    if (!next.alive()) {
      stacks_.shrink(stack_size);
      return false;
    }
    pool.erase(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(next.begin));
    set = {.begin = 0, .end = next.end - next.begin, .at_bottom = next.at_bottom};
  }
  configurations_ = std::move(pool);
  complete_ = set.at_bottom;
  if (stacks_.size() > frames_before_cleaning_) {
    stacks_.compact(configurations_);
    frames_before_cleaning_ = std::max(kFewFrames, 2 * stacks_.size());
  }
  return true;
}

void Constraint::allowed(std::span<uint64_t> mask) const {
  std::fill(mask.begin(), mask.end(), 0);
  const auto assign = [&](Token token, bool value) {
    const auto id = static_cast<size_t>(token);
    if (token < 0 || id / 64 >= mask.size()) return;
    const uint64_t bit = uint64_t{1} << (id % 64);
    mask[id / 64] = value ? mask[id / 64] | bit : mask[id / 64] & ~bit;
  };
  if (ended_ || mask.size() != index_->mask_words()) return;
  MaskMaker(grammar_->automaton(), *index_, *cache_, stacks_).run(configurations_, mask);
  if (!grammar_->automaton().uses_dsml) assign(index_->dsml(), false);
  assign(index_->eos(), complete_);
}

std::optional<std::vector<Token>> Constraint::shortest_end(size_t most_tokens) const {
  if (ended_ || complete_) return std::vector<Token>();
  const auto text = find_shortest_end(grammar_->automaton(), stacks_, configurations_, kMostEndBytes);
  if (!text) return std::nullopt;
  auto tokens = index_->spell(*text, grammar_->automaton().uses_dsml);
  const bool fits = !tokens.empty() && tokens.size() <= most_tokens;
  return fits ? std::optional(std::move(tokens)) : std::nullopt;
}

}  // namespace ds4::grammar
