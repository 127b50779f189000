#include "sweep.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.hpp"
#include "common/interrupt.hpp"

namespace ds4::steer {
namespace {

struct Answer {
  std::string text;
  size_t tokens = 0;
  bool ended = false;
};

Result<Answer> answer(const Options& options, const Engine& engine, Session& session) {
  const SpecialTokens& special = engine.tokenizer().special();
  const std::array stops{special.eos, special.user, special.bos};
  Rng unused(1);
  Answer result;
  while (result.tokens < options.max_tokens && session.position() + 1 < session.context()) {
    if (cli::interrupted()) return fail(ErrorCode::cancelled, "interrupted");
    DS4_ASSIGN(const auto tokens, session.generate({.temperature = 0}, unused, 1, stops));
    result.ended = std::find(stops.begin(), stops.end(), tokens[0]) != stops.end();
    if (result.ended) break;
    result.text += engine.tokenizer().decode(tokens[0]);
    ++result.tokens;
  }
  return result;
}

size_t count_words(const std::string& text) {
  size_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!space && !inside) ++words;
    inside = !space;
  }
  return words;
}

// Mean of d . y over the layers that have a direction, for y after the edit: (1 - scale d . d) times what was
// captured.
double mean_projection(const SteeringDirections& directions, float scale, std::span<const float> captured) {
  double sum = 0;
  size_t layers = 0;
  for (size_t l = 0; l < directions.layers; ++l) {
    const float* d = directions.values.data() + l * directions.width;
    if (std::all_of(d, d + directions.width, [](float x) { return x == 0; })) continue;
    const double before =
        std::inner_product(d, d + directions.width, captured.data() + l * directions.width, 0.0);
    sum += before * (1 - scale * std::inner_product(d, d + directions.width, d, 0.0));
    ++layers;
  }
  return layers == 0 ? 0 : sum / static_cast<double>(layers);
}

}  // namespace

Result<std::vector<ScaleRow>> run_sweep(const Options& options, const Engine& engine,
                                        const SteeringDirections& directions,
                                        const std::vector<Prompt>& prompts, const SweepOutput& output) {
  DS4_ASSIGN(auto session, engine.create_session(options.context_tokens));
  const bool attention = directions.component == Component::attention;
  std::vector<ScaleRow> rows;
  const double count = static_cast<double>(prompts.size());
  for (const float scale : options.scales) {
    ScaleRow row;
    row.scale = scale;
    session.set_steering(attention ? SteeringScales{scale, 0}
                                   : SteeringScales{options.attention_scale, scale});
    for (const Prompt& prompt : prompts) {
      const RenderedTokens rendered = render(engine.tokenizer(), options.system, prompt.text, options.think);
      DS4_ASSIGN(const auto captured, session.capture(rendered.tokens, directions.component, 1));
      row.projection += mean_projection(directions, scale, captured) / count;
      DS4_ASSIGN(const Answer reply, answer(options, engine, session));
      const ParsedReply parsed = parse_reply(reply.text, options.think != ThinkMode::none, false);
      row.words += static_cast<double>(count_words(parsed.content)) / count;
      row.tokens += static_cast<double>(reply.tokens) / count;
      row.cut += reply.ended ? 0 : 1;
      if (!prompt.expected.empty()) {
        ++row.asked;
        row.right += contains_expected(parsed.content, prompt.expected) ? 1 : 0;
      }
      if (output.on_answer) output.on_answer(scale, prompt, parsed.content);
      if (output.on_progress) {
        const size_t done = rows.size() * prompts.size() + static_cast<size_t>(&prompt - prompts.data()) + 1;
        output.on_progress(done, options.scales.size() * prompts.size());
      }
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace ds4::steer
