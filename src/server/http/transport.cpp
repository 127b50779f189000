#include "server/http/transport.hpp"

#include <string_view>
#include <utility>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/error.hpp"
#include "base/quote.hpp"

namespace ds4::server::http {

namespace {

using asio::ip::tcp;
using boost::system::error_code;

void close_socket(tcp::socket& socket) {
  error_code ignored;
  socket.shutdown(tcp::socket::shutdown_both, ignored);
  socket.close(ignored);
}

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(tcp::socket socket) : socket_(std::move(socket)) {}

  asio::any_io_executor executor() override { return socket_.get_executor(); }
  asio::awaitable<error_code> handshake() override { co_return error_code{}; }

  asio::awaitable<Moved> read_some(asio::mutable_buffer buffer) override {
    Moved moved;
    moved.bytes =
        co_await socket_.async_read_some(buffer, asio::redirect_error(asio::use_awaitable, moved.error));
    co_return moved;
  }

  asio::awaitable<Moved> write_some(asio::const_buffer buffer) override {
    Moved moved;
    moved.bytes =
        co_await socket_.async_write_some(buffer, asio::redirect_error(asio::use_awaitable, moved.error));
    co_return moved;
  }

  void shutdown_send(std::shared_ptr<void>) override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  void close() override { close_socket(socket_); }

 private:
  tcp::socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(tcp::socket socket, asio::ssl::context& context) : stream_(std::move(socket), context) {}

  asio::any_io_executor executor() override { return stream_.get_executor(); }

  asio::awaitable<error_code> handshake() override {
    error_code error;
    co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                     asio::redirect_error(asio::use_awaitable, error));
    co_return error;
  }

  asio::awaitable<Moved> read_some(asio::mutable_buffer buffer) override {
    Moved moved;
    moved.bytes =
        co_await stream_.async_read_some(buffer, asio::redirect_error(asio::use_awaitable, moved.error));
    // Clients often close without the closing record of TLS. Requests carry their own length, so nothing is
    // cut.
    if (moved.error == asio::ssl::error::stream_truncated) moved.error = asio::error::eof;
    co_return moved;
  }

  asio::awaitable<Moved> write_some(asio::const_buffer buffer) override {
    Moved moved;
    moved.bytes =
        co_await stream_.async_write_some(buffer, asio::redirect_error(asio::use_awaitable, moved.error));
    co_return moved;
  }

  void shutdown_send(std::shared_ptr<void> owner) override {
    stream_.async_shutdown([owner = std::move(owner)](const error_code&) {});
  }
  void close() override { close_socket(stream_.next_layer()); }

 private:
  asio::ssl::stream<tcp::socket> stream_;
};

/// Chooses http/1.1 if the client lists it; otherwise goes on without.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  static constexpr std::string_view ours = "\x08http/1.1";
  unsigned char* selected = nullptr;
  const int found =
      SSL_select_next_proto(&selected, chosen_size, reinterpret_cast<const unsigned char*>(ours.data()),
                            ours.size(), offered, offered_size);
  *chosen = selected;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

std::unique_ptr<Transport> make_plain_transport(tcp::socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> make_tls_transport(tcp::socket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context);
}

Result<std::unique_ptr<asio::ssl::context>> make_tls_context(const std::string& certificate_file,
                                                             const std::string& key_file) {
  using asio::ssl::context;
  auto tls = std::make_unique<context>(context::tls_server);
  error_code error;
  tls->set_options(context::default_workarounds | context::no_sslv2 | context::no_sslv3 | context::no_tlsv1 |
                       context::no_tlsv1_1,
                   error);
  // Without this, OpenSSL asks for the key's passphrase on the terminal.
  if (!error)
    tls->set_password_callback([](std::size_t, context::password_purpose) { return std::string(); }, error);
  if (!error) tls->use_certificate_chain_file(certificate_file, error);
  if (error) {
    return fail(ErrorCode::io, "{}: cannot be used as a PEM certificate chain: {}", quote(certificate_file),
                error.message());
  }
  tls->use_private_key_file(key_file, context::pem, error);
  if (error) {
    return fail(ErrorCode::io, "{}: cannot be used as the certificate's PEM key: {}", quote(key_file),
                error.message());
  }
  SSL_CTX_set_alpn_select_cb(tls->native_handle(), choose_protocol, nullptr);
  return tls;
}

}  // namespace ds4::server::http
