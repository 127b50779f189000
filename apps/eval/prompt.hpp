// What the model is given for an item (docs/eval.md §3).
#pragma once

#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/token.hpp"
#include "ds4/tokenizer.hpp"
#include "item.hpp"

namespace ds4::eval {

std::string system_text(const Item& item);
std::string question_text(const Item& item);
/// The mode in which the item is asked in a run with the mode `run`.
ThinkMode think_mode(const Item& item, ThinkMode run);
/// "none", "high", "max".
std::string_view think_name(ThinkMode mode);

std::vector<Token> prompt_tokens(const Item& item, ThinkMode run, const Tokenizer& tokenizer);

}  // namespace ds4::eval
