// The HTTP/1.1 server: sockets, TLS, parsing, limits, keys, Host check, CORS. Knows nothing of models.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "server/http/exchange.hpp"
#include "server/http/message.hpp"

namespace ds4::server::http {

/// Called on one of a small pool of threads, one call per request. May return before the exchange is
/// answered.
using Handler = std::function<void(Request, std::shared_ptr<Exchange>)>;

/// Called before the Handler, on an io thread, for answers that need no work (GET /health), so that they come
/// whatever the pool is doing. Must not block. nullopt: the request goes to the Handler.
using InlineHandler = std::function<std::optional<Response>(const Request&)>;

/// The JSON body of an error that this layer answers itself, in the shape of the API that `path` belongs to
/// (empty if it could not be read).
using ErrorBody = std::function<std::string(std::string_view path, int status, std::string_view message)>;

/// {"error":{"message":...,"type":"invalid_request_error"}} and a line feed.
std::string standard_error_body(std::string_view message);

/// One answered (or broken-off) request, for a log line.
struct AccessRecord {
  uint64_t id = 0;  // 0: was refused before it was a request
  std::string peer, method, path;
  int status = 0;  // 499: the client left before there was one
  size_t body_bytes_in = 0;
  uint64_t bytes_out = 0;                 // with headers and framing
  std::chrono::microseconds duration{0};  // from the complete request to the last byte handed to the system
  bool gone = false;                      // the client did not wait for the end
};

struct ServerOptions {
  /// IPv4 or IPv6 address, or "localhost": both loopback addresses.
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free port

  /// A request must show one of them (Authorization: Bearer, or x-api-key) unless there are none.
  std::vector<std::string> api_keys;
  /// Paths that need no key.
  std::vector<std::string> public_paths = {"/health"};
  /// Without a key, only loopback addresses are listened on, unless this is set.
  bool allow_unauthenticated = false;

  /// Value of Access-Control-Allow-Origin ("*" or one origin); empty: no CORS headers, and requests of web
  /// pages from elsewhere are refused.
  std::string cors_origin;
  /// Names that the Host header may have besides loopback names, IP addresses and `host`; "*": any.
  std::vector<std::string> allowed_hosts;

  /// PEM files; both or none.
  std::string tls_certificate_file, tls_key_file;

  size_t max_header_bytes = 64 << 10;
  size_t max_target_bytes = 8 << 10;
  size_t max_body_bytes = 64 << 20;
  /// Of all requests that are not answered yet; beyond it: 503.
  size_t max_total_body_bytes = size_t{512} << 20;
  /// Of one stream; the client is given up beyond it.
  size_t max_queued_bytes = 8 << 20;
  size_t max_connections = 512;

  std::chrono::milliseconds header_timeout{
      10'000};                                     // first byte to end of the header; also the TLS handshake
  std::chrono::milliseconds body_timeout{30'000};  // without a byte of the body, and its grace at 1 KiB/s
  std::chrono::milliseconds idle_timeout{75'000};  // between requests
  std::chrono::milliseconds write_stall_timeout{30'000};

  size_t io_threads = 2;
  size_t worker_threads = 4;

  InlineHandler inline_handler;
  ErrorBody error_body;                                  // standard_error_body unless set
  std::function<void(const AccessRecord&)> on_answered;  // on an io thread; must be short
};

/// Since the start, but for the first two.
struct Counters {
  uint64_t connections_open = 0;
  uint64_t requests_active = 0;  // received, not answered
  uint64_t connections = 0;
  uint64_t connections_refused = 0;  // too many
  uint64_t requests = 0;
  uint64_t requests_gone = 0;            // the client left before the end
  uint64_t bytes_in = 0, bytes_out = 0;  // inside TLS
  uint64_t responses_by_class[6] = {};   // [2]: 2xx
};

class Server {
 public:
  /// Listens and answers until stop(). Fails with a sentence if the address, the keys, the certificate or an
  /// option makes no sense.
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Handler handler);
  /// Whether start() would fail now, and why: for programs that have much to do before it. Nobody can
  /// connect.
  static Result<void> check(const ServerOptions& options);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const;
  Counters counters() const;

  /// No new connections; idle ones are closed, the others after the answer they wait for.
  void stop_accepting();
  /// After stop_accepting(): waits until every connection is closed. False: not in time.
  bool wait_drained(std::chrono::milliseconds timeout);
  /// Breaks off what is left (exchanges become gone) and waits for the threads, so also for running handlers.
  /// Not to be called from a handler.
  void stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ds4::server::http
