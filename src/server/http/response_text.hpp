// Answers as bytes: status line and headers, framing of the body, and what may not stand in a header.
#pragma once

#include <cstddef>
#include <ctime>
#include <string>
#include <string_view>

#include "server/http/message.hpp"

namespace ds4::server::http {

enum class Framing {
  length,       // Content-Length
  chunked,      // HTTP/1.1
  until_close,  // HTTP/1.0
  none,         // the status has no body
};

struct HeadOptions {
  Framing framing = Framing::length;
  size_t body_bytes = 0;  // Framing::length
  bool http_1_0 = false;
  bool keep_alive = true;
  std::string_view cors_origin;  // empty: no CORS headers
};

/// Status line and headers with the empty line. Headers that could break the framing, and those this layer
/// sets itself (Content-Length, Transfer-Encoding, Connection, Date), are left out.
std::string response_head(int status, std::string_view content_type, const HeaderList& headers,
                          const HeadOptions& options);

/// 204, 304 and 1xx.
bool has_no_body(int status);

/// Appends one chunk; nothing if `bytes` is empty, since an empty chunk would end the body.
void append_chunk(std::string& out, std::string_view bytes);
inline constexpr std::string_view last_chunk = "0\r\n\r\n";

/// "Sun, 06 Nov 1994 08:49:37 GMT".
std::string http_date(std::time_t seconds);

}  // namespace ds4::server::http
