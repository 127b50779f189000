// A connected socket, plain or inside TLS, for coroutines on the connection's strand.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>

#include "ds4/error.hpp"

namespace ds4::server::http {

namespace asio = boost::asio;

/// One read and one write may be under way at the same time; every call is made on the executor.
class Transport {
 public:
  struct Moved {
    std::size_t bytes = 0;
    boost::system::error_code error;  // asio::error::eof: the peer closed its side
  };

  virtual ~Transport() = default;
  virtual asio::any_io_executor executor() = 0;
  virtual asio::awaitable<boost::system::error_code> handshake() = 0;
  virtual asio::awaitable<Moved> read_some(asio::mutable_buffer buffer) = 0;
  virtual asio::awaitable<Moved> write_some(asio::const_buffer buffer) = 0;
  /// Tells the peer that nothing follows. `owner` keeps this alive until that is done.
  virtual void shutdown_send(std::shared_ptr<void> owner) = 0;
  /// Ends both directions; what is under way completes with an error.
  virtual void close() = 0;
};

std::unique_ptr<Transport> make_plain_transport(asio::ip::tcp::socket socket);
std::unique_ptr<Transport> make_tls_transport(asio::ip::tcp::socket socket, asio::ssl::context& context);

/// TLS 1.2 and newer with this certificate chain and key, both PEM.
Result<std::unique_ptr<asio::ssl::context>> make_tls_context(const std::string& certificate_file,
                                                             const std::string& key_file);

}  // namespace ds4::server::http
