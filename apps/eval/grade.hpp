// Whether an answer is right (docs/eval.md §5).
#pragma once

#include <bitset>
#include <string>
#include <string_view>

#include "extract.hpp"
#include "item.hpp"

namespace ds4::eval {

/// Whether `picked` (from extract_answer) is the key of the item or one of its aliases.
bool is_correct(const Item& item, std::string_view picked);

enum class Verdict {
  passed,
  failed,
  incomplete,  // the reply does not end with an answer in the form that was asked for
};

struct Grade {
  Verdict verdict = Verdict::failed;
  std::string picked;
};

/// Grades a reply of a run. Strict: without a final answer line it is incomplete, whatever it says before.
Grade grade_reply(const Item& item, std::string_view raw);
/// Grades a reply of an old trace by the rules of extraction alone.
Grade grade_old_reply(const Item& item, std::string_view raw);

using LineSet = std::bitset<256>;
/// "10", "9-12", "3,5-7": bounds may be reversed; numbers above 255 count as 255, negative ones as 0.
LineSet parse_line_set(std::string_view spec);

/// Normal forms in which answers are compared.
std::string normal_rational(std::string_view text);
std::string normal_text(std::string_view text);
std::string normal_sequence(std::string_view text);

}  // namespace ds4::eval
