// Replies with numbers: integers, line numbers, fractions.
#include <array>

#include "self_check.hpp"

namespace ds4::eval {
namespace {

constexpr AnswerKind integer = AnswerKind::integer, lines = AnswerKind::line_set,
                     rational = AnswerKind::reduced_rational;

// clang-format off: a table reads best as one
constexpr auto cases = std::to_array<ExtractorCase>({
    {"plain integer", integer, 0, "Answer: 70", "70", "70", true},
    {"wrong integer", integer, 0, "Answer: 71", "70", "71", false},
    {"leading zeros of the reply", integer, 0, "Answer: 082", "82", "82", true},
    {"leading zeros of the key", integer, 0, "Answer: 82", "082", "82", true},
    {"zero", integer, 0, "Answer: 0", "0", "0", true},
    {"three zeros", integer, 0, "Answer: 000", "0", "0", true},
    {"zero is not ten", integer, 0, "Answer: 0", "10", "0", false},
    {"prefix is not enough", integer, 0, "Answer: 70", "7", "70", false},
    {"bold", integer, 0, "Answer: **204**", "204", "204", true},
    {"boxed", integer, 0, "Answer: $\\boxed{204}$", "204", "204", true},
    {"unit after the number", integer, 0, "Answer: 25 cm", "25", "25", true},
    {"full stop after the number", integer, 0, "Answer: 25.", "25", "25", true},
    {"decimals are not interpreted", integer, 0, "Answer: 25.7", "25", "25", true},
    {"signs are not interpreted", integer, 0, "Answer: -25", "25", "25", true},
    {"group separators are not interpreted", integer, 0, "Answer: 1,024", "1024", "1", false},
    {"sum: the result counts", integer, 0, "Answer: 10 + 20 = 30", "30", "30", true},
    {"chain of equations: the last result", integer, 0, "Answer: 3*4 = 12 = 6+6 = 12", "12", "12", true},
    {"equation ends without a number", integer, 0, "Answer: 30 = x", "30", "30", true},
    {"equation with name", integer, 0, "Answer: n = 17", "17", "17", true},
    {"equation mod", integer, 0, "Answer: N mod 1000 = 016", "16", "16", true},
    {"digits on later lines do not count", integer, 0, "Answer: 12\nCheck: 99", "12", "12", true},
    {"equation on a later line does not count", integer, 0, "Answer: 12\n7 = 7", "12", "12", true},
    {"later marker", integer, 0, "Answer: 12\nNo, a case was missed.\nAnswer: 13", "13", "13", true},
    {"marker against a trailing year", integer, 0, "Answer: 113\nChecked in 2025", "113", "113", true},
    {"loose integer with a trailing year", integer, 0, "The answer is 113 (in 2025)", "113", "113", true},
    {"loose mention without digits on its line", integer, 0, "An answer follows.\nWe get 5 and then 8", "8", "8", true},
    {"marker at a line end: the last number", integer, 0, "Answer:\n42", "42", "42", true},
    {"no marker: the last number", integer, 0, "First 10, then 20, so 30", "30", "30", true},
    {"no number", integer, 0, "Answer: none", "0", "?", false},
    {"empty reply", integer, 0, "", "0", "?", false},
    {"word answer inside another word", integer, 0, "answering 5 questions\nAnswer: 6", "6", "6", true},
    {"number in reasoning is not looked at", integer, 0, "Answer: 5</think>Answer: 6", "6", "6", true},
    {"reasoning only", integer, 0, "It is 5</think>", "5", "?", false},
    {"beyond 160 bytes the marker ends", integer, 0,
     "Answer: ................................................................................"
     "................................................................................ 5 then 8", "8", "8", true},
    {"superscript digits are no digits", integer, 0, "Answer: x\xc2\xb2 is 49", "49", "49", true},
    {"full-width digits are no digits", integer, 0, "Answer: \xef\xbc\x95 or 6", "6", "6", true},
    {"a very long number", integer, 0, "Answer: 00000000000000000000000000000000000000000000000000012", "12", "12", true},
    {"carriage return", integer, 0, "Answer: 12\r\n", "12", "12", true},
    {"colon of a ratio", integer, 0, "Answer: 3:4", "3", "3", true},
    {"equals sign before the marker", integer, 0, "x = 9, Answer: 4", "4", "4", true},

    {"single line", lines, 0, "Answer: 10", "10", "10", true},
    {"line inside the key's range", lines, 0, "Answer: 10", "9-10", "10", true},
    {"range inside a longer range", lines, 0, "Answer: 9-10", "8-12", "9-10", true},
    {"range longer than the key", lines, 0, "Answer: 8-12", "9-10", "8-12", false},
    {"list", lines, 0, "Answer: 4, 7", "4,7", "4,7", true},
    {"subset of a list", lines, 0, "Answer: 7", "4,7", "7", true},
    {"one right and one wrong", lines, 0, "Answer: 7, 8", "4,7", "7,8", false},
    {"blanks around the dash", lines, 0, "Answer: 9 - 10", "9-10", "9-10", true},
    {"reversed range", lines, 0, "Answer: 10-9", "9-10", "10-9", true},
    {"word line", lines, 0, "Answer: line 12", "12", "12", true},
    {"lines and", lines, 0, "Answer: lines 4 and 7", "4,7", "4,7", true},
    {"trailing comma", lines, 0, "Answer: 4, 7,", "4,7", "4,7", true},
    {"trailing dash", lines, 0, "Answer: 4-", "4", "4", true},
    {"dash before a word", lines, 0, "Answer: 4 - the copy", "4", "4", true},
    {"later lines do not count", lines, 0, "Answer: 4\n7", "4", "4", true},
    {"safe", lines, 0, "Answer: 0", "0", "0", true},
    {"safe where there is a defect", lines, 0, "Answer: 0", "5", "0", false},
    {"a defect where all is safe", lines, 0, "Answer: 5", "0", "5", false},
    {"bold lines", lines, 0, "Answer: **12**", "12", "12", true},
    {"no marker: the last number", lines, 0, "I would say 12", "12", "12", true},
    {"no number", lines, 0, "Answer: none of them", "0", "?", false},
    {"leading zeros", lines, 0, "Answer: 007", "7", "007", true},
    {"a number beyond all lines", lines, 0, "Answer: 99999999999999999999", "12", "99999999999999999999", false},
    {"beyond all lines is the last one", lines, 0, "Answer: 300", "255", "300", true},
    {"three numbers in a chain", lines, 0, "Answer: 3-5-7", "3-7", "3-5,7", true},
    {"key with list and range", lines, 0, "Answer: 6", "3,5-7", "6", true},
    {"semicolons", lines, 0, "Answer: 4; 7", "4,7", "4,7", true},
    {"typographic dash is a separator", lines, 0, "Answer: 9\xe2\x80\x93" "10", "9-10", "9,10", true},

    {"fraction", rational, 0, "Answer: 3/4", "3/4", "3/4", true},
    {"fraction with a full stop", rational, 0, "Answer: 3/4.", "3/4", "3/4.", true},
    {"fraction in TeX", rational, 0, "Answer: $\\frac{3}{4}$", "3/4", "$\\frac{3}{4}$", true},
    {"display fraction, boxed", rational, 0, "Answer: \\boxed{\\dfrac{3}{4}}", "3/4", "\\boxed{\\dfrac{3}{4}}", true},
    {"negative fraction", rational, 0, "Answer: -\\frac{3}{4}", "-3/4", "-\\frac{3}{4}", true},
    {"not reduced", rational, 0, "Answer: 6/8", "3/4", "6/8", false},
    {"sign matters", rational, 0, "Answer: 3/4", "-3/4", "3/4", false},
    {"blanks in a fraction", rational, 0, "Answer: 3 / 4", "3/4", "3 / 4", true},
    {"whole number", rational, 0, "Answer: 12", "12", "12", true},
    {"unclosed TeX", rational, 0, "Answer: \\frac{3}{4", "3/4", "\\frac{3}{4", false},
    {"decimal is another answer", rational, 0, "Answer: 0.75", "3/4", "0.75", false},
    {"no fraction", rational, 0, "", "3/4", "?", false},
});
// clang-format on

}  // namespace

std::span<const ExtractorCase> number_cases() {
  return cases;
}

}  // namespace ds4::eval
