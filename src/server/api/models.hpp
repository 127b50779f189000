// GET /v1/models and /v1/models/{id}: what there is, in the words of OpenAI, Anthropic and those who copy
// them.
#pragma once

#include <string_view>

#include "server/generator.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

http::Response answer_models(const http::Request& request, Generator& generator);

/// `id` is the name after /v1/models/. Known besides the model's own: deepseek-chat and deepseek-reasoner.
http::Response answer_model(std::string_view id, const ServerInfo& info);

}  // namespace ds4::server::api
