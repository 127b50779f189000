#include "score_lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "text_lines.hpp"

namespace ds4::quantize {
namespace {

constexpr std::string_view header = "id\tprompt_tokens\ttarget_tokens\tnll\tavg_nll\tfirst_match\tgreedy_lcp";
constexpr size_t columns = 7;
constexpr size_t shown_cases = 8;
// Smaller differences are rounding.
constexpr double tie = 1e-9;

template <class T>
bool read_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// A case that both lists have.
struct Pair {
  const ListedScore* before = nullptr;
  const ListedScore* after = nullptr;
  double change() const { return after->nll - before->nll; }
};

std::string cases_text(std::vector<Pair> pairs, const char* title, bool gains) {
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
    return gains ? a.change() < b.change() : a.change() > b.change();
  });
  std::string text = fmt::format("{}\n", title);
  for (const Pair& pair : std::span(pairs).first(std::min(pairs.size(), shown_cases))) {
    if (gains ? pair.change() >= -tie : pair.change() <= tie) break;
    const auto tokens = static_cast<double>(pair.before->tokens);
    text += fmt::format("{}\t{:+.6f}\t{}\t{:.6f}\t{:.6f}\n", pair.before->id, pair.change(),
                        pair.before->tokens, pair.before->nll / tokens, pair.after->nll / tokens);
  }
  return text;
}

}  // namespace

std::string score_list(const std::vector<ItemScore>& items) {
  std::string text = std::string(header) + "\n";
  for (const ItemScore& item : items) {
    if (item.kind != ItemKind::continuation) continue;
    text += fmt::format("{}\t{}\t{}\t{:.9f}\t{:.9f}\t{}\t{}\n", item.id, item.given, item.tokens, item.nll,
                        item.nll / static_cast<double>(item.tokens), item.first_matches, item.greedy_prefix);
  }
  return text;
}

Result<std::vector<ListedScore>> parse_score_list(std::string_view text, const std::string& name) {
  std::vector<ListedScore> scores;
  std::set<std::string_view> ids;
  for (const auto& [number, line] : content_lines(text)) {
    if (line.starts_with("id\t")) continue;
    const auto fields = split(line, '\t');
    ListedScore score;
    unsigned match = 0;
    const bool good =
        fields.size() >= columns && !fields[0].empty() && read_number(fields[2], score.tokens) &&
        score.tokens > 0 && read_number(fields[3], score.nll) && std::isfinite(score.nll) &&
        read_number(fields[5], match) && match <= 1 && read_number(fields[6], score.greedy_prefix);
    if (!good) return fail(ErrorCode::format, "{}:{}: this is no line of a list of scores", name, number);
    if (!ids.insert(fields[0]).second)
      return fail(ErrorCode::format, "{}:{}: there is another line of {}", name, number, quote(fields[0]));
    score.id = fields[0];
    score.first_match = match == 1;
    scores.push_back(std::move(score));
  }
  if (scores.empty()) return fail(ErrorCode::format, "{}: there are no scores", name);
  return scores;
}

Result<std::string> compare_score_lists(const std::vector<ListedScore>& before,
                                        const std::vector<ListedScore>& after) {
  std::map<std::string_view, const ListedScore*> by_id;
  for (const ListedScore& score : after) by_id[score.id] = &score;
  std::vector<Pair> pairs;
  for (const ListedScore& score : before) {
    const auto found = by_id.find(score.id);
    if (found == by_id.end()) continue;
    if (found->second->tokens != score.tokens)
      return fail(ErrorCode::invalid_argument, "{} has {} tokens in one list and {} in the other",
                  quote(score.id), score.tokens, found->second->tokens);
    pairs.push_back({&score, found->second});
  }
  if (pairs.empty()) return fail(ErrorCode::invalid_argument, "the lists have no id in common");
  size_t tokens = 0, new_wins = 0, old_wins = 0, old_first = 0, new_first = 0, old_prefix = 0, new_prefix = 0;
  double old_nll = 0, new_nll = 0;
  for (const Pair& pair : pairs) {
    tokens += pair.before->tokens;
    old_nll += pair.before->nll;
    new_nll += pair.after->nll;
    new_wins += pair.change() < -tie;
    old_wins += pair.change() > tie;
    old_first += pair.before->first_match;
    new_first += pair.after->first_match;
    old_prefix += pair.before->greedy_prefix;
    new_prefix += pair.after->greedy_prefix;
  }
  const auto count = static_cast<double>(pairs.size()), all = static_cast<double>(tokens);
  const double old_mean = old_nll / all, new_mean = new_nll / all;
  std::string text = fmt::format("cases\t{}\ntokens\t{}\nold_avg_nll\t{:.9f}\nnew_avg_nll\t{:.9f}\n",
                                 pairs.size(), tokens, old_mean, new_mean);
  text += fmt::format("delta_new_minus_old\t{:.9f}\nrelative_nll_change\t{:.3f}%\n", new_mean - old_mean,
                      old_mean > 0 ? 100 * (new_mean / old_mean - 1) : 0);
  text += fmt::format("case_wins_new_old_ties\t{}\t{}\t{}\n", new_wins, old_wins,
                      pairs.size() - new_wins - old_wins);
  text += fmt::format("first_token_matches_old_new\t{}\t{}\n", old_first, new_first);
  text += fmt::format("avg_greedy_lcp_old_new\t{:.3f}\t{:.3f}\n", static_cast<double>(old_prefix) / count,
                      static_cast<double>(new_prefix) / count);
  text += cases_text(pairs, "best_for_new\tdelta_nll\ttokens\told_avg_nll\tnew_avg_nll", true);
  return text + cases_text(pairs, "best_for_old\tdelta_nll\ttokens\told_avg_nll\tnew_avg_nll", false);
}

}  // namespace ds4::quantize
