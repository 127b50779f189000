// Scores of continuations as tab-separated lists, in the original's layout, and the comparison of two.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "score.hpp"

namespace ds4::quantize {

/// A line for each continuation: id, tokens of the prompt and of the continuation, NLL as sum and mean,
/// whether the first token is the likeliest (0 or 1), and how many tokens greedy decoding goes along.
std::string score_list(const std::vector<ItemScore>& items);

struct ListedScore {
  std::string id;
  size_t tokens = 0;
  double nll = 0;
  bool first_match = false;
  size_t greedy_prefix = 0;
};
/// Reads such a list. Errors name the line.
Result<std::vector<ListedScore>> parse_score_list(std::string_view text, const std::string& name);

/// What changed between two lists, over the ids that both have: lines of a name and values, divided by tabs.
/// An error if an id has different numbers of tokens, or if no id is in both.
Result<std::string> compare_score_lists(const std::vector<ListedScore>& before,
                                        const std::vector<ListedScore>& after);

}  // namespace ds4::quantize
