// Round trips through TLS with a certificate made on the spot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "server/http/server.hpp"
#include "server/http/test_client.hpp"
#include "server/http/test_exchanges.hpp"

namespace ds4::server::http {
namespace {

using namespace std::chrono_literals;

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
template <class T, auto free>
using Owned = std::unique_ptr<T, Free<free>>;

class HttpTls : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("http_tls_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    const Owned<EVP_PKEY, EVP_PKEY_free> key(EVP_EC_gen("P-256"));
    const Owned<X509, X509_free> certificate(X509_new());
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    X509_NAME* name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"),
                               -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    const Owned<FILE, std::fclose> certificate_file(std::fopen(path("cert.pem").c_str(), "w"));
    const Owned<FILE, std::fclose> key_file(std::fopen(path("key.pem").c_str(), "w"));
    ASSERT_TRUE(PEM_write_X509(certificate_file.get(), certificate.get()));
    ASSERT_TRUE(PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  ServerOptions options() const {
    ServerOptions options;
    options.port = 0;
    options.tls_certificate_file = path("cert.pem");
    options.tls_key_file = path("key.pem");
    return options;
  }

  HeldExchanges held_;

 private:
  std::filesystem::path folder_;
};

class TlsClient {
 public:
  explicit TlsClient(uint16_t port) : client_(port), context_(SSL_CTX_new(TLS_client_method())) {
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), client_.fd());
    SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>("\x02h2\x08http/1.1"), 12);
    connected_ = SSL_connect(ssl_.get()) == 1;
  }
  bool connected() const { return connected_; }
  SSL* ssl() const { return ssl_.get(); }
  bool send(std::string_view bytes) {
    return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) ==
           static_cast<int>(bytes.size());
  }
  bool receive_until(std::string_view text) {
    char buffer[4096];
    while (received_.find(text) == std::string::npos) {
      const int got = SSL_read(ssl_.get(), buffer, sizeof buffer);
      if (got <= 0) return false;
      received_.append(buffer, static_cast<size_t>(got));
    }
    return true;
  }
  const std::string& received() const { return received_; }
  void forget_received() { received_.clear(); }
  TestClient& socket() { return client_; }

 private:
  TestClient client_;
  Owned<SSL_CTX, SSL_CTX_free> context_;
  Owned<SSL, SSL_free> ssl_;
  bool connected_ = false;
  std::string received_;
};

TEST_F(HttpTls, RequestsAndStreams) {
  auto server = Server::start(options(), held_.handler());
  ASSERT_TRUE(server) << server.error().message;
  TlsClient client((*server)->port());
  ASSERT_TRUE(client.connected());
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(client.ssl(), &protocol, &size);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(protocol), size), "http/1.1");

  const std::string body(1 << 20, 'x');
  client.send(post("/x", body));
  auto held = held_.next();
  EXPECT_EQ(held.request.body, body);
  held.exchange->respond({.body = body});
  ASSERT_TRUE(client.receive_until("\r\n\r\n" + body));
  client.forget_received();

  client.send(get("/stream"));
  const auto stream = held_.next().exchange;
  stream->begin_stream(200, "text/plain", {});
  stream->set_keepalive("ping", 20ms);
  ASSERT_TRUE(client.receive_until("4\r\nping\r\n"));
  stream->write("text");
  ASSERT_TRUE(client.receive_until("4\r\ntext\r\n"));
  stream->end();
  ASSERT_TRUE(client.receive_until("0\r\n\r\n"));
  client.forget_received();

  client.send(get("/last", "Connection: close\r\n"));
  held_.next().exchange->respond({.body = "bye"});
  ASSERT_TRUE(client.receive_until("bye"));
  EXPECT_FALSE(client.receive_until("more"));
  EXPECT_EQ(SSL_get_shutdown(client.ssl()) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
}

TEST_F(HttpTls, AClientThatLeavesIsNoticed) {
  auto server = Server::start(options(), held_.handler());
  ASSERT_TRUE(server);
  for (const int way : {0, 1, 2}) {
    TlsClient client((*server)->port());
    client.send(get("/"));
    const auto exchange = held_.next().exchange;
    EXPECT_FALSE(exchange->gone());
    if (way == 0) SSL_shutdown(client.ssl());
    if (way == 1) client.socket().close();
    if (way == 2) client.socket().reset();
    EXPECT_TRUE(eventually([&] { return exchange->gone(); })) << way;
  }
  EXPECT_TRUE(eventually([&] { return (*server)->counters().connections_open == 0; }));
}

TEST_F(HttpTls, HandshakesAreTimedAndPlainTextIsRefused) {
  ServerOptions quick = options();
  quick.header_timeout = 100ms;
  auto server = Server::start(quick, held_.handler());
  ASSERT_TRUE(server);
  TestClient silent((*server)->port()), plain((*server)->port());
  EXPECT_EQ(plain.ask(get("/")).status, 0);
  EXPECT_TRUE(silent.closed_by_peer());
  EXPECT_TRUE(eventually([&] { return (*server)->counters().connections_open == 0; }));
}

TEST_F(HttpTls, KeyAndCertificateMustBelongTogether) {
  ServerOptions swapped = options();
  std::swap(swapped.tls_certificate_file, swapped.tls_key_file);
  const auto server = Server::start(swapped, held_.handler());
  ASSERT_FALSE(server);
  EXPECT_THAT(server.error().message, ::testing::HasSubstr("key.pem"));
}

}  // namespace
}  // namespace ds4::server::http
