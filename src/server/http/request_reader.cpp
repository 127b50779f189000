#include "server/http/request_reader.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>

#include "server/http/text.hpp"

namespace ds4::server::http {

namespace beast = boost::beast;
namespace net = boost::asio;

namespace {

constexpr size_t max_method_bytes = 32;
constexpr size_t version_bytes = sizeof(" HTTP/1.1") - 1;
constexpr size_t max_empty_lines = 4;
constexpr const char* too_large = "the request body is larger than this server accepts";

Refusal refusal_for(const boost::system::error_code& error, std::string_view request_line) {
  using Failure = beast::http::error;
  if (error == Failure::body_limit) return {413, too_large};
  if (error == Failure::header_limit) return {431, "the request header is larger than this server accepts"};
  if (error == Failure::bad_content_length || error == Failure::multiple_content_length) {
    return {400, "Content-Length is not one plain number, or stands beside Transfer-Encoding"};
  }
  if (error == Failure::bad_transfer_encoding) {
    return {400, "Transfer-Encoding is given twice or beside Content-Length"};
  }
  if (error == Failure::bad_version) {
    const size_t at = request_line.rfind(" HTTP/");
    if (at != std::string_view::npos && request_line.size() == at + version_bytes) {
      return {505, "only HTTP/1.0 and HTTP/1.1 are spoken here"};
    }
  }
  return {400, "the request is not well-formed HTTP/1.1"};
}

}  // namespace

/// Beast's parser, collecting into an IncomingRequest.
class RequestReader::Parser final : public beast::http::basic_parser<true> {
 public:
  IncomingRequest incoming;
  std::optional<Refusal> refusal;  // of a request that is well-formed for Beast
  bool chunked = false;
  std::uint64_t length = 0;  // of the body, if it is not in chunks

 private:
  using field = beast::http::field;
  using verb = beast::http::verb;
  using error_code = beast::error_code;
  using string_view = beast::string_view;

  static std::string_view view(string_view text) { return {text.data(), text.size()}; }

  void refuse(int status, std::string message, error_code& error) {
    if (!refusal) refusal = Refusal{status, std::move(message)};
    error = beast::http::error::bad_value;
  }

  void on_request_impl(verb, string_view method, string_view target, int version,
                       error_code& error) override {
    Request& request = incoming.request;
    incoming.http_1_0 = version < 11;
    if (method.size() > max_method_bytes) return refuse(501, "the request method is not known here", error);
    request.head_only = view(method) == "HEAD";
    request.method = request.head_only ? "GET" : std::string(method);

    std::string_view path = view(target);
    if (path != "*" && path.front() != '/') {  // absolute form: scheme://authority/path
      const size_t scheme = path.find("://");
      if (scheme == std::string_view::npos || scheme == 0 || path.substr(0, scheme).find('/') != path.npos) {
        return refuse(400, "the request target is neither a path nor a complete address", error);
      }
      path.remove_prefix(scheme + 3);
      const size_t end = std::min(path.find_first_of("/?"), path.size());
      incoming.authority = path.substr(0, end);
      if (incoming.authority.empty()) return refuse(400, "the request target names no host", error);
      path.remove_prefix(end);
    }
    const size_t query = std::min(path.find('?'), path.size());
    request.path = query == 0 ? "/" : std::string(path.substr(0, query));
    if (query < path.size()) request.query = path.substr(query + 1);
  }

  void on_field_impl(field, string_view name, string_view value, error_code& error) override {
    incoming.request.headers.emplace_back(std::string(name), std::string(value));
    const std::string_view key = view(name), text = view(value);
    if (equal_ignoring_case(key, "host")) {
      if (++hosts_ > 1) return refuse(400, "Host is given twice", error);
      if (incoming.authority.empty()) incoming.authority = text;
    } else if (equal_ignoring_case(key, "content-length")) {
      const bool digits = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (++lengths_ > 1 || !digits) return refuse(400, "Content-Length is not one plain number", error);
    } else if (equal_ignoring_case(key, "transfer-encoding")) {
      if (++transfer_encodings_ > 1) return refuse(400, "Transfer-Encoding is given twice", error);
      chunked = equal_ignoring_case(text, "chunked");
      if (!chunked) return refuse(501, "the only Transfer-Encoding understood here is chunked", error);
    } else if (equal_ignoring_case(key, "expect")) {
      incoming.expects_continue = equal_ignoring_case(text, "100-continue");
      if (!incoming.expects_continue)
        return refuse(417, "the only Expect understood here is 100-continue", error);
    } else if (equal_ignoring_case(key, "content-encoding") && !equal_ignoring_case(text, "identity")) {
      return refuse(415, "compressed request bodies (Content-Encoding) are not supported", error);
    }
  }

  void on_header_impl(error_code& error) override {
    if (lengths_ > 0 && transfer_encodings_ > 0) {
      return refuse(400, "Content-Length stands beside Transfer-Encoding", error);
    }
    if (incoming.http_1_0) {
      incoming.expects_continue = false;
      if (chunked) return refuse(400, "HTTP/1.0 has no Transfer-Encoding", error);
    } else if (hosts_ == 0) {
      return refuse(400, "an HTTP/1.1 request needs a Host header", error);
    }
    const std::string& method = incoming.request.method;
    if (lengths_ == 0 && !chunked && (method == "POST" || method == "PUT" || method == "PATCH")) {
      return refuse(411, "this request needs a Content-Length or chunks", error);
    }
    incoming.keep_alive = keep_alive();
    length = content_length().value_or(0);
    incoming.has_body = chunked || length > 0;
  }

  // The parser is given the header only.
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(string_view, error_code&) override { return 0; }
  void on_chunk_header_impl(std::uint64_t, string_view, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, string_view, error_code&) override { return 0; }
  void on_response_impl(int, string_view, int, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  size_t hosts_ = 0, lengths_ = 0, transfer_encodings_ = 0;
};

RequestReader::RequestReader(const RequestLimits& limits)
    : limits_(limits), parser_(std::make_unique<Parser>()) {
  constexpr size_t most = std::numeric_limits<std::uint32_t>::max();
  parser_->header_limit(static_cast<std::uint32_t>(std::min(limits.max_header_bytes, most)));
  parser_->body_limit(limits.max_body_bytes);
}

RequestReader::~RequestReader() = default;

IncomingRequest& RequestReader::incoming() {
  return parser_->incoming;
}

void RequestReader::refuse(int status, std::string message) {
  state_ = State::refused;
  refusal_ = {status, std::move(message)};
}

size_t RequestReader::consume(std::string_view bytes) {
  switch (state_) {
    case State::header:
      return consume_header(bytes);
    case State::body:
      return consume_body(bytes);
    case State::complete:
    case State::refused:
      return 0;
  }
  return 0;
}

/// Length of the header with its empty line; 0 while it is incomplete or once it is refused.
size_t RequestReader::find_header_end(std::string_view bytes) {
  const size_t max_line = max_method_bytes + 1 + limits_.max_target_bytes + version_bytes;
  for (; scanned_ < bytes.size(); ++scanned_) {
    const char c = bytes[scanned_];
    const bool after_cr = scanned_ > 0 && bytes[scanned_ - 1] == '\r';
    if (scanned_ >= limits_.max_header_bytes) {
      refuse(431, "the request header is larger than this server accepts");
      return 0;
    }
    if (after_cr != (c == '\n')) {
      refuse(400, "lines of the request header must end in CR LF");
      return 0;
    }
    if (c == '\n') {
      if (line_start_ + 1 == scanned_) return ++scanned_;
      line_start_ = scanned_ + 1;
      ++lines_;
      continue;
    }
    if (lines_ > 0 && line_start_ == scanned_ && (c == ' ' || c == '\t')) {
      refuse(400, "folded lines in the request header are not accepted");
      return 0;
    }
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
      refuse(400, "the request header contains control characters");
      return 0;
    }
    if (lines_ == 0 && scanned_ > max_line) {
      refuse(414, "the request target is longer than this server accepts");
      return 0;
    }
  }
  return 0;
}

size_t RequestReader::consume_header(std::string_view bytes) {
  size_t skipped = 0;
  while (!started_ && bytes.substr(skipped).starts_with("\r\n")) {
    skipped += 2;
    if (++empty_lines_ > max_empty_lines) {
      refuse(400, "empty lines instead of a request");
      return skipped;
    }
  }
  bytes.remove_prefix(skipped);
  if (bytes.empty() || (!started_ && bytes == "\r")) return skipped;
  started_ = true;

  const size_t length = find_header_end(bytes);
  if (length == 0) return skipped;
  boost::system::error_code error;
  const size_t taken = parser_->put(net::const_buffer(bytes.data(), length), error);
  if (parser_->refusal) {
    refuse(parser_->refusal->status, parser_->refusal->message);
  } else if (error || taken != length) {
    const Refusal refusal = refusal_for(error, bytes.substr(0, bytes.find('\r')));
    refuse(refusal.status, refusal.message);
  } else {
    state_ = parser_->incoming.has_body ? State::body : State::complete;
    length_ = static_cast<size_t>(parser_->length);  // at most max_body_bytes
    if (parser_->chunked) chunks_.emplace(limits_.max_body_bytes);
  }
  return skipped + length;
}

size_t RequestReader::consume_body(std::string_view bytes) {
  std::string& body = incoming().request.body;
  if (!chunks_) {
    const size_t taken = std::min(bytes.size(), length_ - body.size());
    body.append(bytes.substr(0, taken));
    if (body.size() == length_) state_ = State::complete;
    return taken;
  }
  const size_t taken = chunks_->consume(bytes, body);
  switch (chunks_->state()) {
    case ChunkReader::State::more:
      break;
    case ChunkReader::State::complete:
      state_ = State::complete;
      break;
    case ChunkReader::State::malformed:
      refuse(400, "the chunks of the request body are malformed");
      break;
    case ChunkReader::State::too_large:
      refuse(413, too_large);
      break;
  }
  return taken;
}

}  // namespace ds4::server::http
