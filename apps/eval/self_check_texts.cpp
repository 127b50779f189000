// Replies with texts, sequences and tool calls, and how replies end.
#include <array>

#include "self_check.hpp"

namespace ds4::eval {
namespace {

constexpr AnswerKind text = AnswerKind::exact_text, sequence = AnswerKind::ordered_sequence,
                     tools = AnswerKind::tool_calls;

#define CALLS_BEGIN "\n\n<｜DSML｜tool_calls>\n"
#define CALLS_END "</｜DSML｜tool_calls>"
#define WEATHER(city)                                                                             \
  "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">" city \
  "</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
#define LISBON_KEY "[{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Lisbon\"}}]"

// clang-format off: a table reads best as one
constexpr auto cases = std::to_array<ExtractorCase>({
    {"plain text", text, 0, "Answer: Marie Curie", "Marie Curie", "Marie Curie", true},
    {"case", text, 0, "Answer: marie curie", "Marie Curie", "marie curie", true},
    {"blanks", text, 0, "Answer:  Marie   Curie ", "MarieCurie", "Marie Curie", true},
    {"full stop and semicolon", text, 0, "Answer: Marie Curie.;", "Marie Curie", "Marie Curie.;", true},
    {"bold", text, 0, "Answer: **Marie Curie**", "Marie Curie", "**Marie Curie**", true},
    {"boxed", text, 0, "Answer: $\\boxed{x+1}$", "x+1", "$\\boxed{x+1}$", true},
    {"brackets in TeX", text, 0, "Answer: \\left(0,1\\right)", "(0,1)", "\\left(0,1\\right)", true},
    {"another name", text, 0, "Answer: Pierre Curie", "Marie Curie", "Pierre Curie", false},
    {"more than the name", text, 0, "Answer: Marie Curie and Pierre", "Marie Curie", "Marie Curie and Pierre", false},
    {"commas stay", text, 0, "Answer: 1,2", "12", "1,2", false},
    {"only the line of the marker", text, 0, "Answer: red\nblue", "red", "red", true},
    {"without marker the last line", text, 0, "I think\nred\n\n", "red", "red", true},
    {"marker without payload: the last line", text, 0, "Answer:\nred", "red", "red", true},
    {"last marker", text, 0, "Answer: red\nAnswer: blue", "blue", "blue", true},
    {"no text", text, 0, " \n ", "red", "?", false},
    {"reasoning does not count", text, 0, "Answer: red</think>Answer: blue", "blue", "blue", true},
    {"letters outside ASCII", text, 0, "Answer: Citt\xc3\xa0", "Citt\xc3\xa0", "Citt\xc3\xa0", true},

    {"sequence", sequence, 0, "Answer: 3, 1, 2", "3,1,2", "3, 1, 2", true},
    {"order matters", sequence, 0, "Answer: 1, 3, 2", "3,1,2", "1, 3, 2", false},
    {"tags are dropped", sequence, 0, "Answer: <b>3</b>, 1, 2", "3,1,2", "<b>3</b>, 1, 2", true},
    {"words of a sequence", sequence, 0, "Answer: Iron, Copper, gold", "iron,copper,gold", "Iron, Copper, gold", true},
    {"brackets around a sequence", sequence, 0, "Answer: [3, 1, 2]", "3,1,2", "[3, 1, 2]", true},
    {"full stop after a sequence", sequence, 0, "Answer: 3, 1, 2.", "3,1,2", "3, 1, 2.", true},
    {"decimals in a sequence", sequence, 0, "Answer: 1.5, -2/3", "1.5,-2/3", "1.5, -2/3", true},
    {"a less-than sign without end", sequence, 0, "Answer: 1 < 2", "12", "1 < 2", true},
    {"missing element", sequence, 0, "Answer: 3, 1", "3,1,2", "3, 1", false},

    {"one call", tools, 0, CALLS_BEGIN WEATHER("Lisbon") CALLS_END, LISBON_KEY, "get_weather{\"city\":\"Lisbon\"}", true},
    {"call after words and reasoning", tools, 0, "Let me see.</think>I look it up." CALLS_BEGIN WEATHER("Lisbon") CALLS_END, LISBON_KEY,
     "get_weather{\"city\":\"Lisbon\"}", true},
    {"another argument", tools, 0, CALLS_BEGIN WEATHER("Porto") CALLS_END, LISBON_KEY, "get_weather{\"city\":\"Porto\"}", false},
    {"arguments are exact", tools, 0, CALLS_BEGIN WEATHER("lisbon") CALLS_END, LISBON_KEY, "get_weather{\"city\":\"lisbon\"}", false},
    {"two calls where one is expected", tools, 0, CALLS_BEGIN WEATHER("Lisbon") WEATHER("Porto") CALLS_END, LISBON_KEY,
     "get_weather{\"city\":\"Lisbon\"}; get_weather{\"city\":\"Porto\"}", false},
    {"a call that breaks off", tools, 0, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">", LISBON_KEY, "?", false},
    {"no call", tools, 0, "get_weather{\"city\":\"Lisbon\"}", LISBON_KEY, "?", false},
    {"order and spelling of arguments", tools, 0,
     CALLS_BEGIN "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"b\" string=\"false\">2.0</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"a\" string=\"false\">[1, true]</｜DSML｜parameter>\n</｜DSML｜invoke>\n" CALLS_END,
     "[{\"name\":\"f\",\"arguments\":{\"a\":[1,true],\"b\":2}}]", "f{\"a\":[1,true],\"b\":2}", true},
});

constexpr auto final_lines = std::to_array<FinalLineCase>({
    {"final line", "Because.\nAnswer: C", true},
    {"blank lines after it", "Answer: C\n\n  \n", true},
    {"bold final line", "**Answer:** C", true},
    {"final line in one paragraph", "So the answer: 12", true},
    {"letters of other alphabets", "Answer: \xce\xb1", true},
    {"nothing", "", false},
    {"blanks only", "  \n", false},
    {"no marker", "It is C", false},
    {"marker without colon", "The answer is C", false},
    {"marker without payload", "Answer:", false},
    {"marker with dressing only", "**Answer:**", false},
    {"payload on the next line", "Answer:\nC", false},
    {"words after the final line", "Answer: C\nI hope this helps.", false},
    {"answers: is not the word", "answers: C", false},
});
// clang-format on

#undef CALLS_BEGIN
#undef CALLS_END
#undef WEATHER
#undef LISBON_KEY

}  // namespace

std::span<const ExtractorCase> text_cases() {
  return cases;
}

std::span<const FinalLineCase> final_line_cases() {
  return final_lines;
}

}  // namespace ds4::eval
