// For tests of chat and text completions: options of a reply, and the parts of a stream that both have.
#pragma once

#include <string>

#include "server/api/event_stream.hpp"
#include "server/api/openai_reply.hpp"

namespace ds4::server::api {

inline OpenAiReplyOptions openai_options(const std::string& id, bool stream) {
  OpenAiReplyOptions options;
  options.id = id;
  options.created = 1770000000;
  options.model = "deepseek-v4-flash";
  options.stream = stream;
  return options;
}

/// The event of a chunk with these choices.
inline std::string openai_chunk(const std::string& id, const std::string& object, const std::string& choices,
                                const std::string& rest) {
  return event_text(fmt::format(
      R"({{"id":"{}","object":"{}","created":1770000000,"model":"deepseek-v4-flash","choices":[{}]{}}})", id,
      object, choices, rest));
}

inline const std::string kDone = "data: [DONE]\n\n";
/// Of done_event({5, 0, 7, 3}).
inline const std::string kUsage =
    R"("usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":)"
    R"({"cached_tokens":0,"cache_write_tokens":5},"completion_tokens_details":{"reasoning_tokens":3}})";

}  // namespace ds4::server::api
