// Constrained decoding: which tokens may come next in one reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.hpp"
#include "grammar/stacks.hpp"
#include "grammar/vocabulary_index.hpp"

namespace ds4::grammar {

class MaskCache;

/// Where one reply stands in its grammar. Cheap to copy; copies share what they have worked out about masks.
/// One object must not be used by two threads at once; copies may.
class Constraint {
 public:
  Constraint(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const VocabularyIndex> index);

  /// Takes the next token or the next bytes. False, and nothing changes, if they may not follow. EOS is
  /// accepted where the text is complete, and then nothing may follow.
  bool accept(Token token);
  bool accept_bytes(std::string_view bytes);

  /// Sets the bits of the tokens that may follow and clears all others; `mask` has index.mask_words() words.
  /// Never empty before the end: some token always leads on, or EOS.
  void allowed(std::span<uint64_t> mask) const;

  bool complete() const { return complete_; }  // the text may end here
  bool ended() const { return ended_; }        // EOS was accepted
  /// Tokens that bring the text to its end in a short way; none if it is complete. Null if they are more than
  /// `most_tokens`, or cannot be found soon.
  std::optional<std::vector<Token>> shortest_end(size_t most_tokens) const;

 private:
  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const VocabularyIndex> index_;
  std::shared_ptr<MaskCache> cache_;
  Stacks stacks_;
  std::vector<Configuration> configurations_;
  size_t frames_before_cleaning_ = 256;
  bool complete_ = false, ended_ = false;
};

}  // namespace ds4::grammar
