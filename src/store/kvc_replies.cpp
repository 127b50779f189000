#include "store/kvc_replies.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "text/sampled_reply.hpp"

namespace ds4::store {
namespace {

std::string_view without_leading_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \n\r\t"), text.size()));
}

/// Tokens of the assistant from `begin` on; `thinking`: they begin inside reasoning.
struct Turn {
  std::span<const Token> tokens;
  bool thinking = false;
};

Turn turn_at(std::span<const Token> tokens, size_t begin, const SpecialTokens& special) {
  Turn turn;
  if (begin < tokens.size() && (tokens[begin] == special.think_open || tokens[begin] == special.think_close))
    turn.thinking = tokens[begin++] == special.think_open;
  const auto ends = [&](Token token) {
    return token == special.eos || token == special.user || token == special.assistant ||
           token == special.bos;
  };
  const auto rest = tokens.subspan(begin);
  turn.tokens = rest.first(static_cast<size_t>(std::find_if(rest.begin(), rest.end(), ends) - rest.begin()));
  return turn;
}

}  // namespace

std::vector<KvcReply> replies_of_tools(std::span<const Token> tokens, const Tokenizer& tokenizer,
                                       std::span<const KvcTool> tools) {
  std::vector<KvcReply> replies;
  std::unordered_map<std::string_view, size_t> of_block;  // without the space before it -> place in `replies`
  for (const KvcTool& tool : tools) {
    const auto [known, is_new] = of_block.try_emplace(without_leading_space(tool.block), replies.size());
    if (is_new) replies.emplace_back();
    replies[known->second].ids.push_back(tool.id);
  }
  if (tools.empty()) return replies;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != tokenizer.special().assistant) continue;
    const Turn turn = turn_at(tokens, i + 1, tokenizer.special());
    const ParsedReply parsed = parse_reply(tokenizer.decode(turn.tokens), turn.thinking, true);
    const auto known = of_block.find(without_leading_space(parsed.tool_block));
    if (parsed.tool_block.empty() || known == of_block.end()) continue;
    auto reply = text::sampled_reply(turn.tokens, parsed.tool_block.size(), turn.thinking, tokenizer);
    if (reply != nullptr) replies[known->second].reply = std::move(reply);
  }
  std::erase_if(replies, [](const KvcReply& reply) { return reply.reply == nullptr; });
  return replies;
}

}  // namespace ds4::store
