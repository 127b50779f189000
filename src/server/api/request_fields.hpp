// Fields that mean the same in every API.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/json_fields.hpp"
#include "server/generation.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// `model`, or the server's own name for it. Replies repeat it in every event, so it has a limit.
std::string read_model(const Fields& body, const ServerInfo& info);

/// `temperature`, `top_p`, `min_p`, `top_k`, `seed`.
void read_sampling(const Fields& body, GenerationRequest& request);

/// A string or an array of strings; empty ones are left out.
std::vector<std::string> read_stop(const Fields& body, std::string_view name);

/// The one of these fields that stands last in the body.
std::optional<size_t> read_max_tokens(const Fields& body, std::initializer_list<std::string_view> names);

/// Notes an error for fields that would change the answer and that no API of this server supports, unless
/// they have their neutral value: penalties, logit_bias, other samplers, grammars of other servers, audio.
void refuse_unsupported(const Fields& body);

/// What names the conversation: `prompt_cache_key`, a session header, `safety_identifier` or `user`; may be
/// empty. Cut after 256 bytes.
std::string conversation_hint(const Fields& body, const http::Request& request);

/// The text of a message's content: a string, or an array of strings and text parts, joined. Errors name what
/// is neither ("messages[0].content[1]: image_url is not supported"). Parts that are reasoning are appended
/// to `reasoning`, if there is one.
std::string read_text_content(const JsonValue& content, const std::string& path, FieldErrors& errors,
                              std::string* reasoning = nullptr);

/// The text of the first of `reasoning_content`, `reasoning` and `thinking` that has one. Clients store it in
/// their own ways: what is no text is passed over.
std::string read_reasoning_text(const Fields& message);

}  // namespace ds4::server::api
