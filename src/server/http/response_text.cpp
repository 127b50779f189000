#include "server/http/response_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "server/http/text.hpp"

namespace ds4::server::http {

namespace {

bool is_token(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_value(std::string_view value) {
  return std::none_of(value.begin(), value.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
}

bool is_ours(std::string_view name) {
  static constexpr std::array ours = {"content-length", "transfer-encoding", "connection", "date"};
  return std::any_of(ours.begin(), ours.end(),
                     [&](const char* own) { return equal_ignoring_case(name, own); });
}

void append_header(std::string& out, std::string_view name, std::string_view value) {
  if (!is_token(name) || !is_value(value)) return;
  out.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

bool has_no_body(int status) {
  return status == 204 || status == 304 || status < 200;
}

std::string http_date(std::time_t seconds) {
  static constexpr std::array days = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr std::array months = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", days[utc.tm_wday], utc.tm_mday,
                     months[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string response_head(int status, std::string_view content_type, const HeaderList& headers,
                          const HeadOptions& options) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  append_header(out, "Date", http_date(std::time(nullptr)));
  if (!content_type.empty()) append_header(out, "Content-Type", content_type);
  switch (options.framing) {
    case Framing::length:
      append_header(out, "Content-Length", fmt::to_string(options.body_bytes));
      break;
    case Framing::chunked:
      append_header(out, "Transfer-Encoding", "chunked");
      break;
    case Framing::until_close:
    case Framing::none:
      break;
  }
  if (!options.keep_alive) {
    append_header(out, "Connection", "close");
  } else if (options.http_1_0) {
    append_header(out, "Connection", "keep-alive");
  }
  if (!options.cors_origin.empty()) {
    append_header(out, "Access-Control-Allow-Origin", options.cors_origin);
    append_header(out, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
    // Browsers do not count Authorization as part of "*".
    append_header(out, "Access-Control-Allow-Headers", "*, Authorization");
    append_header(out, "Access-Control-Expose-Headers", "*");
    if (options.cors_origin != "*") append_header(out, "Vary", "Origin");
  }
  for (const auto& [name, value] : headers) {
    if (!is_ours(name)) append_header(out, name, value);
  }
  out += "\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view bytes) {
  if (bytes.empty()) return;
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes.size());
  out.append(bytes).append("\r\n");
}

}  // namespace ds4::server::http
