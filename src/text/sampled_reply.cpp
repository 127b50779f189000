#include "text/sampled_reply.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "text/special_tokens.hpp"

namespace ds4::text {

std::shared_ptr<const SampledReply> sampled_reply(std::span<const Token> tokens, size_t block_bytes,
                                                  bool thinking, const Tokenizer& tokenizer) {
  const SpecialTokens& special = tokenizer.special();
  size_t total = 0;
  for (const Token token : tokens) total += tokenizer.decode(token).size();
  const size_t block_begin = total - std::min(block_bytes, total);

  SampledReply reply;
  std::vector<PromptSpan>* part = thinking ? &reply.reasoning : &reply.content;
  const auto append = [](std::vector<PromptSpan>& spans, std::string_view text, bool trusted) {
    if (text.empty()) return;
    if (spans.empty() || spans.back().trusted != trusted) spans.push_back({{}, trusted});
    spans.back().text += text;
  };
  size_t offset = 0;
  for (const Token token : tokens) {
    const std::string bytes = tokenizer.decode(token);
    if (part == &reply.reasoning && token == special.think_close) {
      part = &reply.content;
    } else {
      if (part == &reply.content && offset >= block_begin) part = &reply.tool_block;
      const bool crosses = part == &reply.content && offset + bytes.size() > block_begin;
      const size_t before = crosses ? block_begin - offset : bytes.size();
      append(*part, std::string_view(bytes).substr(0, before), is_special(special, token));
      if (crosses) append(reply.tool_block, std::string_view(bytes).substr(before), false);
    }
    offset += bytes.size();
  }
  if (part == &reply.reasoning) return nullptr;
  return std::make_shared<const SampledReply>(std::move(reply));
}

}  // namespace ds4::text
