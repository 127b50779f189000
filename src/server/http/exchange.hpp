// One request's answer under way: complete, or streamed with keepalives, to a client that may leave at any
// time.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "server/http/message.hpp"

namespace ds4::server::http {

/// Thread-safe; no call blocks. Either respond() once, or begin_stream(), any number of write(), end().
/// What does not fit that order (a second respond, a write after end) is ignored. When the last reference
/// goes before the answer is complete, the client gets a 500, or a stream that breaks off (visibly in
/// HTTP/1.1). An interface, so that the layers above can be tested without sockets.
class Exchange {
 public:
  virtual ~Exchange() = default;

  /// The complete answer.
  virtual void respond(Response response) = 0;

  /// Status line and headers now, the body in pieces: chunked, or up to the end of the connection for an
  /// HTTP/1.0 client. Cache-Control: no-cache is added.
  virtual void begin_stream(int status, std::string content_type, HeaderList headers) = 0;
  /// Queues a piece of the body. If the client does not take what was queued, it is given up: see gone().
  virtual void write(std::string bytes) = 0;
  /// The body is complete.
  virtual void end() = 0;

  /// While the stream is open and nothing was written for `interval` (wall clock), `bytes` are sent. May
  /// change at any time, also before begin_stream(); empty: nothing is sent.
  void set_keepalive(std::string bytes, std::chrono::milliseconds interval) {
    set_keepalive_maker(
        bytes.empty() ? std::function<std::string()>() : [bytes = std::move(bytes)] { return bytes; },
        interval);
  }
  /// The same with bytes that are made when they are due, on a thread of the server. `make` must be short,
  /// and neither call this exchange nor wait for a thread that might be calling it. Empty bytes: the next
  /// time is in an interval.
  virtual void set_keepalive_maker(std::function<std::string()> make, std::chrono::milliseconds interval) = 0;

  /// True once nobody listens: the peer closed its side (which cannot be told from one that only stops
  /// sending; what is written still goes out) or reset, took nothing for too long, let too much pile up, or
  /// the server stops. Noticed also while nothing is being written. Stays true.
  virtual bool gone() const = 0;
  /// `callback` runs once when gone() becomes true before the answer is complete, on a thread of the server;
  /// at once, on the calling thread, if it is true already. It must be short. A second callback replaces the
  /// first.
  virtual void on_gone(std::function<void()> callback) = 0;

  /// Bytes that the client's socket has not taken yet.
  virtual size_t queued_bytes() const = 0;
};

}  // namespace ds4::server::http
