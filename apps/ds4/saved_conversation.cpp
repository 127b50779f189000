#include "saved_conversation.hpp"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include "base/error.hpp"
#include "common/console.hpp"
#include "common/model_run.hpp"
#include "store/session_file.hpp"

namespace ds4::cli {

Result<SavedConversation> load_conversation(const std::string& path, const Engine& engine,
                                            const Options& options) {
  DS4_ASSIGN(store::SavedSession saved,
             store::load_session(path, engine, options.context_tokens, state_numerics(engine, options)));
  SavedConversation result;
  result.turns.assign(saved.tokens.begin() + static_cast<ptrdiff_t>(saved.preamble_tokens),
                      saved.tokens.end());
  const Token eos = engine.tokenizer().special().eos;
  if (!result.turns.empty() && result.turns.back() != eos) result.turns.push_back(eos);
  result.session = std::move(saved.session);
  if (result.session) prepare_session(*result.session, engine, options);
  say(fmt::format("{}: a conversation of {} tokens", path, saved.tokens.size()));
  if (!saved.lost.empty()) warn(saved.lost + "; the conversation is evaluated again");
  return result;
}

Result<SavedConversation> load_if_there(const std::string& path, const Engine& engine,
                                        const Options& options) {
  if (::access(path.c_str(), F_OK) != 0) return SavedConversation{};
  return load_conversation(path, engine, options);
}

std::string state_numerics(const Engine& engine, const Options& options) {
  if (!engine.info().steering) return {};
  const SteeringScales scales =
      steering_scales(options, engine.info().steering_component).value_or(SteeringScales{});
  return fmt::format("steering {} {}", scales.feed_forward, scales.attention);
}

Result<void> save_conversation(const std::string& path, const Engine& engine, Session& session,
                               const std::vector<Token>& preamble, const std::vector<Token>& turns,
                               const std::string& numerics) {
  if (turns.empty()) return fail(ErrorCode::invalid_argument, "there is no conversation to save yet");
  std::vector<Token> all = preamble;
  all.insert(all.end(), turns.begin(), turns.end());
  // There may be no room for the EOS of the last reply; reading puts it back.
  if (all.size() >= session.context()) all.pop_back();
  DS4_TRY(sync_with_progress(session, all));
  return store::save_session(path, engine, session, preamble.size(), numerics);
}

}  // namespace ds4::cli
