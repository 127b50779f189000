#include "generate.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "base/error.hpp"
#include "common/interrupt.hpp"
#include "common/model_run.hpp"
#include "output_printer.hpp"

namespace ds4::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double rate(size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace

size_t generation_room(uint64_t context, size_t position, size_t wanted) {
  if (context <= position + 1) return 0;
  return static_cast<size_t>(std::min<uint64_t>(wanted, context - position - 1));
}

Result<Reply> generate_reply(const Engine& engine, Session& session, std::span<const Token> prompt,
                             const ReplyOptions& options, Rng& rng, Writer& output) {
  Reply reply;
  auto begin = Clock::now();
  const auto stats = sync_with_progress(session, prompt);
  reply.prefill_seconds = seconds_since(begin);
  if (!stats) {
    if (stats.error().code != ErrorCode::cancelled) return stats.error();
    reply.stop = StopReason::interrupted;
    return reply;
  }
  reply.prefilled_tokens = stats->evaluated;

  const Tokenizer& tokenizer = engine.tokenizer();
  OutputPrinter printer([&](std::string_view bytes) { return output.write(bytes); }, options.thinking,
                        output.terminal());
  const size_t limit = generation_room(session.context(), session.position(), options.max_tokens);
  reply.stop = limit < options.max_tokens ? StopReason::context_full : StopReason::token_limit;
  begin = Clock::now();
  const SpeculationStats drafts_before = session.speculation();
  const std::array stops{tokenizer.special().eos, tokenizer.special().user, tokenizer.special().bos};
  while (reply.tokens.size() < limit) {
    if (interrupted()) {
      reply.stop = StopReason::interrupted;
      break;
    }
    const auto chosen = session.generate(options.sampling, rng, limit - reply.tokens.size(), stops);
    if (!chosen) {
      printer.finish();
      return chosen.error();
    }
    for (const Token token : *chosen) {
      if (ends_reply(tokenizer.special(), token)) {
        reply.stop = StopReason::end_of_reply;
        break;
      }
      reply.tokens.push_back(token);
      if (!printer.push(tokenizer.decode(token))) {
        reply.stop = StopReason::output_failed;
        break;
      }
    }
    if (reply.stop == StopReason::end_of_reply || reply.stop == StopReason::output_failed) break;
  }
  reply.decode_seconds = seconds_since(begin);
  if (!printer.finish()) reply.stop = StopReason::output_failed;
  reply.drafts = session.speculation();
  if (reply.drafts.failure != drafts_before.failure) warn(reply.drafts.failure + "; it is not used any more");
  return reply;
}

void say_speed(const Reply& reply) {
  Writer error(STDERR_FILENO);
  const std::string line = fmt::format("ds4: prefill: {:.2f} t/s, generation: {:.2f} t/s",
                                       rate(reply.prefilled_tokens, reply.prefill_seconds),
                                       rate(reply.tokens.size(), reply.decode_seconds));
  error.write(error.styled(style_cyan, line) + "\n");
  if (reply.drafts.draft_steps > 0) {
    error.write(error.styled(style_cyan, "ds4: " + drafts_text(reply.drafts)) + "\n");
  }
}

}  // namespace ds4::cli
