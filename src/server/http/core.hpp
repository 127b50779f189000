// What all connections of a server share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>

#include "server/http/access_rules.hpp"
#include "server/http/server.hpp"

namespace ds4::server::http {

class Connection;

struct Core {
  Core(ServerOptions server_options, AccessRules access_rules, Handler request_handler)
      : options(std::move(server_options)),
        rules(std::move(access_rules)),
        handler(std::move(request_handler)),
        io(static_cast<int>(options.io_threads)),
        workers(options.worker_threads) {}

  std::string error_body(std::string_view path, int status, std::string_view message) const {
    return options.error_body ? options.error_body(path, status, message) : standard_error_body(message);
  }

  const ServerOptions options;
  const AccessRules rules;
  const Handler handler;
  std::unique_ptr<boost::asio::ssl::context> tls;

  std::atomic<bool> draining = false;  // no further request on any connection
  std::atomic<bool> stopping = false;  // handlers are not called any more
  std::atomic<uint64_t> next_request = 0, next_connection = 0;
  std::atomic<size_t> body_bytes = 0;  // of requests that are not answered

  std::atomic<uint64_t> requests_active = 0, connections_total = 0, connections_refused = 0,
                        requests_total = 0, requests_gone = 0, bytes_in = 0, bytes_out = 0;
  std::array<std::atomic<uint64_t>, 6> responses_by_class{};

  std::mutex mutex;  // of the next three
  std::condition_variable closed;
  std::unordered_map<uint64_t, std::shared_ptr<Connection>> connections;
  size_t acceptors_open = 0;

  // Last: destroyed first, with the handlers that still refer to the rest.
  boost::asio::io_context io;
  boost::asio::thread_pool workers;
};

}  // namespace ds4::server::http
