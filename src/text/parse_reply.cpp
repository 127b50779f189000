#include "ds4/chat.hpp"
#include "text/dsml_reader.hpp"
#include "text/special_tokens.hpp"

namespace ds4 {

ParsedReply parse_reply(std::string_view text, bool think, bool tools) {
  ParsedReply reply;
  size_t answer = 0;
  if (think) {
    const size_t begin = text.starts_with(text::kThinkOpen) ? text::kThinkOpen.size() : 0;
    const size_t end = text.find(text::kThinkClose, begin);
    reply.reasoning = text.substr(begin, end == std::string_view::npos ? end : end - begin);
    if (end == std::string_view::npos) return reply;
    answer = end + text::kThinkClose.size();
  }
  reply.content = text.substr(answer);
  if (!tools) return reply;

  const auto start = text::find_dsml_block(text, answer, think);
  if (!start) return reply;
  auto block = text::read_dsml_block(text, *start);
  if (!block) {
    reply.malformed_tools = true;
    return reply;
  }
  reply.content.resize(start->position - answer);
  reply.content.resize(reply.content.find_last_not_of(" \t\r\n\v\f") + 1);
  reply.tool_block = text.substr(start->position, block->end - start->position);
  reply.tool_calls = std::move(block->calls);
  return reply;
}

}  // namespace ds4
