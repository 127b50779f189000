// Time of one token mask, with the vocabulary of a tokenizer.json-like file or one made up of the same size.
//
// usage: ds4_grammar_bench [--vocabulary=FILE.json] [benchmark flags]; FILE is {"tokens": [...], "merges":
// [...]} in the notation of GGUF vocabularies.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/tokenizer.hpp"
#include "grammar/constraint.hpp"
#include "grammar/grammar.hpp"
#include "text/byte_alphabet.hpp"
#include "text/special_tokens.hpp"
#include "text/utf8.hpp"

namespace {

using ds4::grammar::Constraint;
using ds4::grammar::Grammar;
using ds4::grammar::VocabularyIndex;

std::string vocabulary_file;

/// Words of random letters, a third of them behind a space, and all bytes.
std::vector<std::string> made_up_tokens() {
  std::vector<std::string> tokens;
  const auto spelled = [](std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) {
      ds4::text::append_utf8(text, ds4::text::kByteAlphabet[static_cast<unsigned char>(byte)]);
    }
    return text;
  };
  for (const auto& special : ds4::text::kSpecialSpellings) tokens.emplace_back(special.text);
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(spelled(std::string(1, static_cast<char>(byte))));
  std::mt19937 random(1);
  const std::string_view kEnds[] = {"", "", "", "", "", "\"", "\",", ".", "}", "\":"};
  while (tokens.size() < 129280) {
    std::string word(random() % 3 == 0 ? " " : "");
    for (size_t length = 2 + random() % 7; length > 0; --length) {
      word.push_back("etaoinshrdlucmfwypvbgkjqxz"[random() % (1 + random() % 26)]);
    }
    if (random() % 50 == 0) word += kEnds[random() % std::size(kEnds)];
    tokens.push_back(spelled(word));
  }
  return tokens;
}

std::shared_ptr<const VocabularyIndex> index() {
  static const auto made = [] {
    std::vector<std::string> tokens;
    std::vector<std::string> merges;
    if (vocabulary_file.empty()) {
      tokens = made_up_tokens();
    } else {
      std::ifstream file(vocabulary_file);
      const boost::json::value json =
          boost::json::parse(std::string{std::istreambuf_iterator<char>(file), {}});
      tokens = boost::json::value_to<std::vector<std::string>>(json.at("tokens"));
      merges = boost::json::value_to<std::vector<std::string>>(json.at("merges"));
    }
    const std::vector<std::string_view> token_views(tokens.begin(), tokens.end());
    const std::vector<std::string_view> merge_views(merges.begin(), merges.end());
    const auto tokenizer = ds4::Tokenizer::create(token_views, merge_views).value();
    return std::make_shared<const VocabularyIndex>(tokenizer);
  }();
  return made;
}

constexpr std::string_view kSchema = R"({"type":"object","properties":{
  "name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
  "mail":{"type":"string","format":"email"},"short":{"type":"string","maxLength":40},
  "tags":{"type":"array","items":{"type":"string","enum":["red","green","blue"]}},"any":{}},
  "required":["name","age","mail","short","tags","any"]})";

/// The mask behind a text. `first`: nothing is known from masks before.
void mask(benchmark::State& state, const std::shared_ptr<const Grammar>& grammar, std::string_view text,
          bool first) {
  const Constraint fresh(grammar, index());
  Constraint constraint = fresh;
  if (!constraint.accept_bytes(text)) state.SkipWithError("the text does not belong to the grammar");
  std::vector<uint64_t> bits(index()->mask_words());
  for (auto _ : state) {
    if (first) {
      state.PauseTiming();
      Constraint other(grammar, index());
      other.accept_bytes(text);
      state.ResumeTiming();
      other.allowed(bits);
    } else {
      constraint.allowed(bits);
    }
    benchmark::DoNotOptimize(bits.data());
  }
}

void add(const std::string& name, const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  for (const bool first : {false, true}) {
    benchmark::RegisterBenchmark((name + (first ? "/first" : "/again")).c_str(),
                                 [=](benchmark::State& state) { mask(state, grammar, text, first); })
        ->Unit(benchmark::kMicrosecond);
  }
}

void compile(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Grammar::json_schema(kSchema, true));
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view kFlag = "--vocabulary=";
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kFlag)) {
      vocabulary_file = argument.substr(kFlag.size());
    } else {
      rest.push_back(argv[i]);
    }
  }
  int count = static_cast<int>(rest.size());
  benchmark::Initialize(&count, rest.data());

  const auto object = Grammar::json_object().value();
  const auto schema = Grammar::json_schema(kSchema, true).value();
  const std::vector<ds4::grammar::ToolSignature> signatures{
      {"edit", R"({"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"array",
        "items":{"type":"string"}}},"required":["path","lines"]})"},
      {"ping", ""}};
  const auto tools = Grammar::tool_calls(signatures, true).value();
  const std::string block = "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"edit\">\n";
  const std::string path = block + "<｜DSML｜parameter name=\"path\" string=\"true\">";
  const std::string lines =
      path + "a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"lines\" string=\"false\">[\"";
  benchmark::RegisterBenchmark("compile", compile)->Unit(benchmark::kMicrosecond);
  add("object/start", object, "{");
  add("object/string", object, R"({"a": "some )");
  add("object/value", object, R"({"a": )");
  add("object/number", object, R"({"a": 12)");
  add("schema/string", schema, R"({"name": "so)");
  add("schema/number", schema, R"({"name": "x", "age": 1)");
  add("schema/email", schema, R"({"name": "x", "age": 1, "mail": "a)");
  add("schema/short", schema, R"({"name": "x", "age": 1, "mail": "a@b.c", "short": "abc)");
  add("schema/enum", schema, R"({"name": "x", "age": 1, "mail": "a@b.c", "short": "", "tags": [")");
  add("tools/tag", tools, block);
  add("tools/raw", tools, path + "src");
  add("tools/json_string", tools, lines + "x");
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
