#include "options.hpp"

#include <algorithm>
#include <array>

#include "base/error.hpp"
#include "result_files.hpp"

namespace ds4::steer {
namespace {

using cli::parse_integer;
using cli::set_integer;
using cli::set_number;
using cli::set_path;

constexpr float largest_scale = 100;
constexpr size_t most_scales = 64;

Result<void> set_component(Component& component, const std::string& name) {
  if (name == "ffn" || name == "ffn_out") {
    component = Component::feed_forward;
  } else if (name == "attn" || name == "attn_out") {
    component = Component::attention;
  } else {
    return fail(ErrorCode::invalid_argument, "there is no component '{}'; there are: ffn, attn", name);
  }
  return {};
}

Result<void> set_positions(Positions& positions, const std::string& text) {
  positions = {};
  if (text == "all") {
    positions.all = true;
    return {};
  }
  return set_integer(positions.last, "--positions", text, 1, 1024);
}

Result<void> set_layers(Options& o, const std::string& text) {
  const size_t dash = text.find('-');
  DS4_ASSIGN(const uint64_t first, parse_integer("--layers", text.substr(0, dash), 0, 1000));
  uint64_t last = first;
  if (dash != std::string::npos) {
    DS4_ASSIGN(last, parse_integer("--layers", text.substr(dash + 1), first, 1000));
  }
  o.first_layer = first;
  o.last_layer = last;
  return {};
}

Result<void> set_scales(std::vector<float>& scales, const std::string& text) {
  scales.clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    DS4_TRY(set_number(scales.emplace_back(), "--scales", text.substr(begin, end - begin), -largest_scale,
                       largest_scale));
    begin = end + 1;
  }
  if (scales.size() > most_scales) {
    return fail(ErrorCode::invalid_argument, "--scales takes at most {} numbers", most_scales);
  }
  std::sort(scales.begin(), scales.end());
  scales.erase(std::unique(scales.begin(), scales.end()), scales.end());
  return {};
}

// clang-format off: a table reads best as one
constexpr auto own_rows = std::to_array<Row>({
    {Section::build, "", "--good", "FILE", "prompts of what the direction points to, one a line",
     [](Options& o, const std::string& v) { return set_path(o.good_path, "--good", v); }},
    {Section::build, "", "--good-file", "FILE", "the same as --good",
     [](Options& o, const std::string& v) { return set_path(o.good_path, "--good-file", v); }},
    {Section::build, "", "--bad", "FILE", "prompts of what it points away from; line by line pairs with --good",
     [](Options& o, const std::string& v) { return set_path(o.bad_path, "--bad", v); }},
    {Section::build, "", "--bad-file", "FILE", "the same as --bad",
     [](Options& o, const std::string& v) { return set_path(o.bad_path, "--bad-file", v); }},
    {Section::build, "", "--component", "NAME", "ffn or attn: which part of the layers [ffn]",
     [](Options& o, const std::string& v) { return set_component(o.component, v); }},
    {Section::build, "", "--positions", "N", "average the last N tokens of a prompt, or 'all' from the user's message on [1]",
     [](Options& o, const std::string& v) { return set_positions(o.positions, v); }},
    {Section::build, "", "--layers", "A-B", "directions for these layers only, from 0; the others get none [all]",
     [](Options& o, const std::string& v) { return set_layers(o, v); }},
    {Section::build, "", "--orthogonalize", nullptr, "take out what lies along the mean of the bad prompts",
     [](Options& o, const std::string&) { o.orthogonalize = true; return Result<void>(); }},
    {Section::build, "", "--pair-normalize", nullptr, "average the normalised differences of the pairs",
     [](Options& o, const std::string&) { o.pair_normalize = true; return Result<void>(); }},

    {Section::sweep, "", "--direction", "FILE", "the directions (.f32)",
     [](Options& o, const std::string& v) { return set_path(o.direction_path, "--direction", v); }},
    {Section::sweep, "", "--prompts", "FILE",
     "prompts, one a line; after a tab, what a right answer contains",
     [](Options& o, const std::string& v) { return set_path(o.prompts_path, "--prompts", v); }},
    {Section::sweep, "", "--scales", "LIST", "scales of the directions' own part [-2,-1,-0.5,0,0.5,1,2]",
     [](Options& o, const std::string& v) { return set_scales(o.scales, v); }},
    {Section::sweep, "", "--attn-scale", "F", "a fixed scale for attention parts while feed-forward ones are swept [0]",
     [](Options& o, const std::string& v) { return set_number(o.attention_scale, "--attn-scale", v, -largest_scale, largest_scale); }},
    {Section::sweep, "-n", "--tokens", "N", "tokens of an answer at most [160]",
     [](Options& o, const std::string& v) { return set_integer(o.max_tokens, "--tokens", v); }},
    {Section::sweep, "", "--show", nullptr, "also print every answer",
     [](Options& o, const std::string&) { o.show = true; return Result<void>(); }},

    {Section::both, "-o", "--out", "NAME", "build: writes NAME.f32 and NAME.json; sweep: NAME.csv and NAME.svg",
     [](Options& o, const std::string& v) { return set_path(o.out, "--out", v); }},
    {Section::both, "-sys", "--system", "TEXT", "system text [You are a helpful assistant.]; \"\" for none",
     [](Options& o, const std::string& v) { o.system = v; return Result<void>(); }},
    {Section::both, "", "--think", nullptr, "prompts that open a reasoning tag; without it they answer directly",
     [](Options& o, const std::string&) { o.think = ThinkMode::high; return Result<void>(); }},
    {Section::both, "", "--nothink", nullptr, "answer directly (default)",
     [](Options& o, const std::string&) { o.think = ThinkMode::none; return Result<void>(); }},
    {Section::both, "-c", "--ctx", "N", "context size in tokens [4096]",
     [](Options& o, const std::string& v) { return set_integer(o.context_tokens, "--ctx", v); }},
    {Section::runtime, "", "--version", nullptr, "show the version",
     [](Options& o, const std::string&) { o.version = true; return Result<void>(); }},
});
// clang-format on

constexpr auto rows = cli::join_rows(cli::program_rows<Options, Section>, own_rows);

Result<void> require(const std::string& value, const char* option) {
  if (!value.empty()) return {};
  return fail(ErrorCode::invalid_argument, "{} is missing", option);
}

}  // namespace

std::span<const Row> option_table() {
  return rows;
}

Result<Options> parse_options(std::span<const char* const> arguments) {
  Options options;
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "build" || command == "sweep") {
    options.command = command == "build" ? Command::build : Command::sweep;
    arguments = arguments.subspan(1);
  }
  DS4_TRY(cli::read_arguments(option_table(), arguments, options));
  if (options.help || options.version) return options;
  switch (options.command) {
    case Command::none:
      return fail(ErrorCode::invalid_argument, "say what to do: build or sweep");
    case Command::build:
      DS4_TRY(require(options.good_path, "--good"));
      DS4_TRY(require(options.bad_path, "--bad"));
      DS4_TRY(require(options.out, "--out"));
      options.out = stem_of(options.out, ".f32", ".json");
      break;
    case Command::sweep:
      DS4_TRY(require(options.direction_path, "--direction"));
      DS4_TRY(require(options.prompts_path, "--prompts"));
      options.steering_path = options.direction_path;
      options.out = stem_of(options.out, ".csv", ".svg");
      break;
  }
  return options;
}

}  // namespace ds4::steer
