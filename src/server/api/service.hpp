// Endpoints about the server and its vocabulary: /health, /props, /tokenize, /detokenize.
#pragma once

#include "server/generator.hpp"
#include "server/http/message.hpp"

namespace ds4::server::api {

/// {"status":"ok"}; needs nothing, so it can be given whatever else goes on.
http::Response answer_health();

/// Defaults, sizes and version.
http::Response answer_props(const http::Request& request, Generator& generator);

/// {"content"|"text"|"prompt", "add_special", "with_pieces"} -> {"tokens":[...]}: ids, or {"id","piece"}.
/// Spellings of special tokens are ordinary text; `add_special` puts BOS in front.
http::Response answer_tokenize(const http::Request& request, Generator& generator);

/// {"tokens":[ids]} -> {"content":"..."}
http::Response answer_detokenize(const http::Request& request, Generator& generator);

}  // namespace ds4::server::api
