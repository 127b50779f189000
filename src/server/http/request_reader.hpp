// Bytes of a connection to requests, without sockets: the syntax of HTTP/1.1, strictly, and the limits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/chunk_reader.hpp"
#include "server/http/message.hpp"

namespace ds4::server::http {

struct RequestLimits {
  size_t max_header_bytes = 64 << 10;
  size_t max_target_bytes = 8 << 10;
  size_t max_body_bytes = 64 << 20;
};

/// An error answer of this layer.
struct Refusal {
  int status = 400;
  std::string message;  // one sentence
};

/// A request with what only this layer needs to know of it.
struct IncomingRequest {
  Request request;
  std::string authority;  // Host, or that of an absolute target; empty if there is none (HTTP/1.0)
  bool http_1_0 = false;
  bool keep_alive = true;
  bool expects_continue = false;
  bool has_body = false;
};

/// Reads one request. Lines end in CRLF only; folded lines, two lengths, a length beside chunks, control
/// characters and anything else that two readers could understand differently are refused, never repaired.
class RequestReader {
 public:
  enum class State { header, body, complete, refused };

  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;

  /// Takes bytes from the front of `bytes` and says how many. The rest must be shown again with what arrives
  /// after it. Takes the header as a whole, never anything behind the request, and nothing once complete or
  /// refused. At most one step from header to body per call, so that the header can be judged before the body
  /// is read. Time is linear in the bytes, however they are cut; memory is a small multiple of the bytes
  /// taken.
  size_t consume(std::string_view bytes);

  State state() const { return state_; }
  /// True once something of a request was seen (empty lines before it do not count).
  bool started() const { return started_; }
  /// Precondition: refused.
  const Refusal& refusal() const { return refusal_; }
  /// Method and path as soon as they are known, all but the body from State::body on.
  IncomingRequest& incoming();

 private:
  class Parser;
  size_t consume_header(std::string_view bytes);
  size_t consume_body(std::string_view bytes);
  size_t find_header_end(std::string_view bytes);
  void refuse(int status, std::string message);

  RequestLimits limits_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::header;
  Refusal refusal_;
  bool started_ = false;
  size_t length_ = 0;                  // of the body, if it is not in chunks
  std::optional<ChunkReader> chunks_;  // if it is
  size_t empty_lines_ = 0;             // before the request
  // Of the header seen so far: bytes that need no second look, where the current line begins, lines before
  // it.
  size_t scanned_ = 0, line_start_ = 0, lines_ = 0;
};

}  // namespace ds4::server::http
