// What arrives and what is sent: one HTTP request, one complete response.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ds4::server::http {

/// Names and values in order.
using HeaderList = std::vector<std::pair<std::string, std::string>>;

/// A complete request that passed every check of this layer (syntax, limits, Host, key).
struct Request {
  std::string method;       // "GET" for HEAD as well; only the answer's body is left out then
  std::string path;         // "/v1/models": as sent, without the query
  std::string query;        // after the first '?', as sent
  HeaderList headers;       // without trailers; values trimmed
  std::string body;         // chunks joined
  std::string peer;         // "127.0.0.1:50312", "[::1]:50312"
  uint64_t id = 0;          // counts from 1 per server
  uint64_t connection = 0;  // which connection it came over, counted in the same way
  bool head_only = false;   // HEAD

  /// The first header of that name, in any case.
  std::optional<std::string_view> header(std::string_view name) const;
};

/// A complete response. Framing (Content-Length, Connection, Date, CORS) is added when it is sent; a header
/// whose name or value could break the framing is left out.
struct Response {
  int status = 200;
  std::string content_type = "application/json";  // empty: no Content-Type
  std::string body;
  HeaderList headers;
};

/// "Not Found" for 404; "Error" for a status without a name here.
std::string_view reason_phrase(int status);

}  // namespace ds4::server::http
