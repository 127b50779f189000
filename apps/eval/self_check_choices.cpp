// Replies to multiple choice questions, friendly and hostile.
#include <array>

#include "self_check.hpp"

namespace ds4::eval {
namespace {

constexpr AnswerKind choice = AnswerKind::choice;

// clang-format off: a table reads best as one
constexpr auto cases = std::to_array<ExtractorCase>({
    // plain forms
    {"plain final line", choice, 4, "Answer: C", "C", "C", true},
    {"wrong letter", choice, 4, "Answer: B", "C", "B", false},
    {"lower case letter", choice, 4, "answer: d", "D", "D", true},
    {"upper case word", choice, 4, "ANSWER: A", "A", "A", true},
    {"blank before the colon", choice, 4, "Answer : B", "B", "B", true},
    {"no blank after the colon", choice, 4, "Answer:B", "B", "B", true},
    {"bold letter", choice, 4, "Answer: **B**", "B", "B", true},
    {"bold announcement", choice, 4, "**Answer:** C", "C", "C", true},
    {"parentheses", choice, 4, "Answer: (D)", "D", "D", true},
    {"brackets", choice, 4, "Answer: [A]", "A", "A", true},
    {"boxed", choice, 4, "Answer: $\\boxed{C}$", "C", "C", true},
    {"letter with its text", choice, 4, "Answer: B. The enthalpy rises", "B", "B", true},
    {"letter with a parenthesis and text", choice, 4, "Answer: B) the enthalpy rises", "B", "B", true},
    {"full stop", choice, 4, "Answer: D.", "D", "D", true},
    {"quoted letter", choice, 4, "Answer: \"C\"", "C", "C", true},
    {"letter on the next line", choice, 4, "Answer:\nC", "C", "C", true},
    {"tenth choice", choice, 10, "Answer: J", "J", "J", true},
    {"letter outside the choices is passed over", choice, 4, "Answer: J, no: C", "C", "C", true},
    {"letter outside the choices only", choice, 4, "Answer: H", "A", "?", false},
    {"two choices", choice, 2, "Answer: C or B", "B", "B", true},
    {"carriage returns", choice, 4, "So it is.\r\nAnswer: B\r\n", "B", "B", true},
    {"empty reply", choice, 4, "", "A", "?", false},
    {"no letters at all", choice, 4, "42 + 17 = 59.", "A", "?", false},
    {"letters inside words only", choice, 4, "ABCD DCBA", "A", "?", false},

    // which place counts
    {"final marker against earlier prose letters", choice, 4, "A is tempting, B too.\nAnswer: C", "C", "C", true},
    {"marker with colon against later prose", choice, 4, "Answer: B\nOption C would need more heat.", "B", "B", true},
    {"the last marker counts", choice, 4, "Answer: A\nWait, the sign is wrong.\nAnswer: D", "D", "D", true},
    {"marker without colon", choice, 4, "The answer is B", "B", "B", true},
    {"a colon beats an earlier mention", choice, 4, "The answer is B? No.\nAnswer: C", "C", "C", true},
    {"a colon beats a later mention", choice, 4, "Answer: C\nThat answer is not B but best.", "C", "C", true},
    {"without colons the first mention", choice, 4, "My answer is C. Another answer would be D.", "C", "C", true},
    {"no mention: the last isolated letter", choice, 4, "I compared A and B and choose C", "C", "C", true},
    {"no mention: lower case counts", choice, 4, "so it must be b", "B", "B", true},
    {"answers: is not the word", choice, 4, "Answer: D\nUnanswered answers: A", "D", "D", true},
    {"reanswer: is not the word", choice, 4, "Answer: D\nreanswer: A", "D", "D", true},
    {"underscore is a neighbour that is no letter", choice, 4, "Answer: D\nfinal_answer: A", "A", "A", true},
    {"digit before the word", choice, 4, "1answer: C", "C", "C", true},
    {"word at the very end", choice, 4, "B is it, my answer", "B", "B", true},
    {"marker with nothing after it", choice, 4, "We take D.\nAnswer:", "D", "D", true},
    {"beyond 96 bytes the marker ends", choice, 4,
     "Answer: ---------------------------------------------------------------------------------------------------- C; B",
     "B", "B", true},
    {"at 96 bytes it still counts", choice, 4,
     "Answer: --------------------------------------------------------------------------------------------- C B", "C", "C", true},
    {"think part is not looked at", choice, 4, "Answer: A</think>Answer: B", "B", "B", true},
    {"only the first closing tag ends reasoning", choice, 4, "x</think>Answer: C</think>D", "C", "C", true},
    {"reasoning without end is looked at", choice, 4, "so Answer: C", "C", "C", true},
    {"an opening tag is text", choice, 4, "<think></think>Answer: C", "C", "C", true},
    {"nothing after reasoning", choice, 4, "Answer: A</think>", "A", "?", false},

    // words that look like letters
    {"pronoun", choice, 10, "Answer: I think it is C", "C", "C", true},
    {"contraction", choice, 10, "Answer: I'll go with D", "D", "D", true},
    {"contraction with a typographic apostrophe", choice, 10, "Answer: I\xe2\x80\x99ll go with D", "D", "D", true},
    {"I'm", choice, 10, "Answer: I'm sure: E", "E", "E", true},
    {"I've", choice, 10, "Answer: I've got B", "B", "B", true},
    {"article", choice, 4, "Answer: A careful reading gives D", "D", "D", true},
    {"article and tab", choice, 4, "Answer: A\tcareful reading gives D", "D", "D", true},
    {"article after several blanks", choice, 4, "Answer: A   careful reading gives D", "D", "D", true},
    {"a genuine lone I", choice, 10, "Answer: I", "I", "I", true},
    {"a genuine I with full stop", choice, 10, "Answer: I.", "I", "I", true},
    {"a genuine A before a line break", choice, 4, "Answer: A\nbecause of the sign", "A", "A", true},
    {"a genuine A before a capital", choice, 4, "Answer: A Benzene", "A", "A", true},
    {"all candidates are prose: the last letter", choice, 4, "Answer: a matter of taste, though B", "B", "B", true},
    {"letter before a lower case word falls back", choice, 4, "Answer: C because of A", "A", "A", true},
    {"letter before a comma stays", choice, 4, "Answer: C, because of A", "C", "C", true},
    {"vitamin C's", choice, 4, "Answer: C's rival D", "D", "D", true},
    {"initials", choice, 4, "Answer: B.C. or D", "B", "B", true},
    {"letters of other alphabets are no letters", choice, 4, "Answer: \xce\xb2" "A", "A", "A", true},
    {"hyphen", choice, 4, "Answer: beta-D", "D", "D", true},
    {"digits beside a letter", choice, 4, "Answer: 5A", "A", "A", true},

    // negations
    {"not B but D", choice, 4, "Answer: not B but D", "D", "D", true},
    {"not B, D", choice, 4, "Answer: not B, D", "D", "D", true},
    {"D, not B", choice, 4, "Answer: D, not B", "D", "D", true},
    {"isn't B, so D", choice, 4, "Answer: it isn't B, so D", "D", "D", true},
    {"isn't with a typographic apostrophe", choice, 4, "Answer: it isn\xe2\x80\x99t B, so D", "D", "D", true},
    {"can't be is no direct negation", choice, 4, "Answer: it can't be B", "B", "B", true},
    {"cannot is not in the list", choice, 4, "Answer: cannot B", "B", "B", true},
    {"wasn't", choice, 4, "Answer: wasn't A; C", "C", "C", true},
    {"rules out", choice, 4, "Answer: this rules out C, leaving D", "D", "D", true},
    {"ruled out", choice, 4, "Answer: having ruled out A, C", "C", "C", true},
    {"rule out", choice, 4, "Answer: we rule out B; D", "D", "D", true},
    {"out alone is no negation", choice, 4, "Answer: out B", "B", "B", true},
    {"find out", choice, 4, "Answer: we find out B", "B", "B", true},
    {"except", choice, 4, "Answer: all except C: D", "D", "D", true},
    {"excluding", choice, 4, "Answer: excluding A, B", "B", "B", true},
    {"excludes", choice, 4, "Answer: that excludes D; C", "C", "C", true},
    {"exclude", choice, 4, "Answer: exclude D; C", "C", "C", true},
    {"eliminate", choice, 4, "Answer: eliminate A, take B", "B", "B", true},
    {"eliminates", choice, 4, "Answer: eliminates A, take B", "B", "B", true},
    {"eliminated", choice, 4, "Answer: eliminated A, take B", "B", "B", true},
    {"reject", choice, 4, "Answer: reject C, take A", "A", "A", true},
    {"rejects", choice, 4, "Answer: rejects C, take A", "A", "A", true},
    {"rejected", choice, 4, "Answer: rejected C, take A", "A", "A", true},
    {"rejecting", choice, 4, "Answer: rejecting C, take A", "A", "A", true},
    {"NOT in capitals", choice, 4, "Answer: NOT B, D", "D", "D", true},
    {"knot is another word", choice, 4, "Answer: knot B", "B", "B", true},
    {"negation before a semicolon", choice, 4, "Answer: not; B, D", "D", "D", true},
    {"a line break ends a negation", choice, 4, "Answer: not\nB", "B", "B", true},
    {"a negation before the marker does not count", choice, 4, "This is not the Answer: B", "B", "B", true},
    {"not Answer: B", choice, 4, "Certainly not answer: B", "B", "B", true},
    {"parentheses end a negation", choice, 4, "Answer: not (B)", "B", "B", true},
    {"negation of a list reaches its first letter only", choice, 4, "Answer: not A, B", "B", "B", true},
    {"all negated: the last letter", choice, 4, "Answer: not B", "B", "B", true},
    {"a long word is no negation", choice, 4, "Answer: aaaaaaaaaaaaaaan't B", "B", "B", true},
    {"a word of fifteen letters still is", choice, 4, "Answer: aaaaaaaaaaaan't B, D", "D", "D", true},
});
// clang-format on

}  // namespace

std::span<const ExtractorCase> choice_cases() {
  return cases;
}

}  // namespace ds4::eval
