// Requests and answers over real sockets: framing, reuse, errors, keys, CORS.
#include "server/http/server.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "server/http/test_client.hpp"

namespace ds4::server::http {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

/// Answers "METHOD PATH?QUERY [BODY]".
void echo(const Request& request, const std::shared_ptr<Exchange>& exchange) {
  exchange->respond(
      {.content_type = "text/plain",
       .body = request.method + " " + request.path + "?" + request.query + " [" + request.body + "]"});
}

std::unique_ptr<Server> start(ServerOptions options = {}, Handler handler = echo) {
  options.port = 0;
  auto server = Server::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server) << server.error().message;
  return std::move(*server);
}

TEST(HttpServer, AnswersOneRequestAfterAnotherOnOneConnection) {
  const auto server = start();
  TestClient client(server->port());
  for (int i = 0; i < 3; ++i) {
    const ClientResponse response = client.ask(post("/echo?n=1", "hello"));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST /echo?n=1 [hello]");
    EXPECT_EQ(response.header("content-type"), "text/plain");
    EXPECT_EQ(response.header("connection"), "");
    EXPECT_NE(response.header("date"), "");
  }
  const Counters counters = server->counters();
  EXPECT_EQ(counters.connections, 1u);
  EXPECT_EQ(counters.connections_open, 1u);
  EXPECT_EQ(counters.requests, 3u);
  EXPECT_GT(counters.bytes_in, 3 * 50u);
  EXPECT_GT(counters.bytes_out, 3 * 50u);
  EXPECT_TRUE(eventually([&] { return server->counters().responses_by_class[2] == 3; }));
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  const auto server = start();
  TestClient client(server->port());
  std::string bytes;
  const auto path = [](int i) { return fmt::format("/{}", i); };
  for (int i = 0; i < 100; ++i) bytes += i % 2 ? get(path(i)) : post(path(i), "x");
  client.send(bytes);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(client.response().body,
              i % 2 ? fmt::format("GET {}? []", path(i)) : fmt::format("POST {}? [x]", path(i)));
  }
}

TEST(HttpServer, PipelinedRequestsWaitForASlowAnswer) {
  std::vector<std::thread> later;
  const auto server = start({}, [&](const Request& request, const std::shared_ptr<Exchange>& exchange) {
    if (request.path != "/slow") return echo(request, exchange);
    later.emplace_back([request, exchange] {
      std::this_thread::sleep_for(50ms);
      echo(request, exchange);
    });
  });
  TestClient client(server->port());
  client.send(get("/slow") + get("/fast"));
  EXPECT_EQ(client.response().body, "GET /slow? []");
  EXPECT_EQ(client.response().body, "GET /fast? []");
  for (std::thread& thread : later) thread.join();
}

TEST(HttpServer, BytewiseAndChunkedRequests) {
  const auto server = start();
  TestClient client(server->port());
  client.send_slowly(post("/a", "body"), 100us);
  EXPECT_EQ(client.response().body, "POST /a? [body]");
  client.send_slowly(
      "POST /b HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: "
      "1\r\n\r\n" +
          get("/c"),
      100us);
  EXPECT_EQ(client.response().body, "POST /b? [abcde]");
  EXPECT_EQ(client.response().body, "GET /c? []");
}

TEST(HttpServer, LargeBodiesBothWays) {
  const auto server = start();
  const std::string body(9 << 20, 'x');
  TestClient client(server->port());
  EXPECT_EQ(client.ask(post("/large", body)).body, fmt::format("POST /large? [{}]", body));
}

TEST(HttpServer, ExpectContinue) {
  const auto server = start();
  TestClient client(server->port());
  client.send("POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
  ASSERT_TRUE(client.receive_until("\r\n\r\n"));
  EXPECT_EQ(client.received(), "HTTP/1.1 100 Continue\r\n\r\n");
  client.forget_received();
  EXPECT_EQ(client.ask("body").body, "POST /x? [body]");

  // Refused before the body is sent.
  client.send(
      "POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.response().status, 413);
}

TEST(HttpServer, HeadAndOptions) {
  const auto server = start();
  TestClient client(server->port());
  client.send("HEAD /h HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const ClientResponse head = client.response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), std::to_string(std::string("GET /h? []").size()));
  const ClientResponse options = client.ask("OPTIONS /any HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.header("access-control-allow-origin"), "");
  EXPECT_EQ(client.ask("OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 204);
  EXPECT_EQ(client.ask(get("/after")).body, "GET /after? []");
}

TEST(HttpServer, OldClientsAndClose) {
  const auto server = start();
  TestClient old(server->port());
  EXPECT_EQ(old.ask("GET /old HTTP/1.0\r\n\r\n").body, "GET /old? []");
  EXPECT_TRUE(old.closed_by_peer());

  TestClient kept(server->port());
  const ClientResponse response = kept.ask("GET /old HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
  EXPECT_EQ(response.header("connection"), "keep-alive");
  EXPECT_EQ(kept.ask("GET /old HTTP/1.0\r\n\r\n").status, 200);

  TestClient closing(server->port());
  EXPECT_EQ(closing.ask(get("/x", "Connection: close\r\n")).header("connection"), "close");
  EXPECT_TRUE(closing.closed_by_peer());
}

TEST(HttpServer, ErrorsHaveTheStandardBodyAndCloseTheConnection) {
  const auto server = start({.max_body_bytes = 100});
  const std::vector<std::pair<std::string, int>> cases = {
      {"nonsense\r\n\r\n", 400},
      {get(std::string(9000, '/')), 414},
      {get("/", "X: " + std::string(70'000, 'x') + "\r\n"), 431},
      {post("/", std::string(101, 'x')), 413},
      {"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505},
      {"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", 411},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
      {"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: deflate\r\n\r\nzz\r\n", 501},
  };
  for (const auto& [bytes, status] : cases) {
    TestClient client(server->port());
    const ClientResponse response = client.ask(bytes);
    EXPECT_EQ(response.status, status);
    EXPECT_EQ(response.header("connection"), "close");
    EXPECT_EQ(response.header("content-type"), "application/json");
    EXPECT_TRUE(response.body.starts_with("{\"error\":{\"message\":\"")) << response.body;
    EXPECT_TRUE(response.body.ends_with("\",\"type\":\"invalid_request_error\"}}\n")) << response.body;
    EXPECT_TRUE(client.closed_by_peer());
  }
  EXPECT_TRUE(eventually([&] { return server->counters().responses_by_class[4] == 6; }));
  EXPECT_EQ(server->counters().responses_by_class[5], 2u);
}

TEST(HttpServer, ARefusalArrivesThoughTheClientStillSends) {
  const auto server = start({.max_body_bytes = 1000});
  TestClient client(server->port());
  EXPECT_EQ(client.ask(post("/", std::string(1 << 20, 'x'))).status, 413);
}

TEST(HttpServer, ErrorBodiesCanDependOnThePath) {
  const auto server = start(
      {.api_keys = {"secret"}, .error_body = [](std::string_view path, int status, std::string_view message) {
         return std::string(path) + "|" + std::to_string(status) + "|" + std::string(message);
       }});
  TestClient client(server->port());
  EXPECT_THAT(client.ask(get("/v1/messages")).body, HasSubstr("/v1/messages|401|"));
}

TEST(HttpServer, StandardErrorBody) {
  EXPECT_EQ(standard_error_body("say \"no\""),
            "{\"error\":{\"message\":\"say \\\"no\\\"\",\"type\":\"invalid_request_error\"}}\n");
}

TEST(HttpServer, KeysAndHosts) {
  const auto server = start({.api_keys = {"secret"}});
  TestClient client(server->port());
  const ClientResponse refused = client.ask(get("/v1/models"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("www-authenticate"), "Bearer");
  // Without a body, the connection stays.
  EXPECT_EQ(client.ask(get("/v1/models", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(client.ask(get("/v1/models", "X-API-Key: secret\r\n")).status, 200);
  EXPECT_EQ(client.ask(get("/health")).status, 200);
  EXPECT_EQ(client.ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
  const ClientResponse with_body = client.ask(post("/v1/chat/completions", "{}"));
  EXPECT_EQ(with_body.status, 401);
  EXPECT_TRUE(client.closed_by_peer());
}

TEST(HttpServer, CorsHeadersAreOnEveryAnswer) {
  const auto server = start({.api_keys = {"secret"}, .cors_origin = "*"});
  TestClient client(server->port());
  for (const std::string& request :
       {get("/x"), get("/health"), std::string("OPTIONS /x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        get("/health", "Origin: https://elsewhere.example\r\n"), std::string("nonsense\r\n\r\n")}) {
    EXPECT_EQ(client.ask(request).header("access-control-allow-origin"), "*") << request;
  }
}

TEST(HttpServer, InlineAnswersDoNotWaitForWorkers) {
  std::atomic<bool> release = false;
  ServerOptions options{.worker_threads = 1};
  options.inline_handler = [](const Request& request) -> std::optional<Response> {
    if (request.path != "/health") return std::nullopt;
    return Response{.body = "{\"status\":\"ok\"}"};
  };
  const auto server = start(options, [&](const Request& request, const std::shared_ptr<Exchange>& exchange) {
    while (!release) std::this_thread::sleep_for(1ms);
    echo(request, exchange);
  });
  TestClient busy(server->port()), probe(server->port());
  busy.send(get("/busy"));
  EXPECT_TRUE(eventually([&] { return server->counters().requests_active == 1; }));
  EXPECT_EQ(probe.ask(get("/health")).body, "{\"status\":\"ok\"}");
  release = true;
  EXPECT_EQ(busy.response().body, "GET /busy? []");
}

TEST(HttpServer, AHandlerThatFailsOrForgetsGives500) {
  const auto server = start({}, [](const Request& request, const std::shared_ptr<Exchange>&) {
    if (request.path == "/throw") throw std::runtime_error("x");
  });
  TestClient client(server->port());
  EXPECT_EQ(client.ask(get("/throw")).status, 500);
  EXPECT_EQ(client.ask(get("/forget")).status, 500);
}

TEST(HttpServer, OnlyTheFirstAnswerCounts) {
  const auto server = start({}, [](const Request&, const std::shared_ptr<Exchange>& exchange) {
    exchange->write("early");
    exchange->end();
    exchange->respond({.body = "first"});
    exchange->respond({.body = "second"});
    exchange->begin_stream(200, "text/plain", {});
    exchange->write("third");
    exchange->end();
  });
  TestClient client(server->port());
  EXPECT_EQ(client.ask(get("/")).body, "first");
  EXPECT_EQ(client.ask(get("/")).body, "first");
}

TEST(HttpServer, AccessRecords) {
  std::mutex mutex;
  std::vector<AccessRecord> records;
  ServerOptions options;
  options.on_answered = [&](const AccessRecord& record) {
    const std::lock_guard lock(mutex);
    records.push_back(record);
  };
  const auto server = start(options);
  TestClient client(server->port());
  client.ask(post("/one", "12345"));
  client.ask("nonsense\r\n\r\n");
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return records.size() == 2;
  }));
  EXPECT_EQ(records[0].id, 1u);
  EXPECT_EQ(records[0].method, "POST");
  EXPECT_EQ(records[0].path, "/one");
  EXPECT_EQ(records[0].status, 200);
  EXPECT_EQ(records[0].body_bytes_in, 5u);
  EXPECT_GT(records[0].bytes_out, 50u);
  EXPECT_TRUE(records[0].peer.starts_with("127.0.0.1:"));
  EXPECT_FALSE(records[0].gone);
  EXPECT_EQ(records[1].id, 0u);
  EXPECT_EQ(records[1].status, 400);
}

TEST(HttpServer, OptionsThatMakeNoSenseAreRefused) {
  const auto message = [](ServerOptions options) {
    options.port = 0;
    auto server = Server::start(std::move(options), echo);
    return server ? std::string() : server.error().message;
  };
  EXPECT_THAT(message({.host = "0.0.0.0"}), HasSubstr("without an API key"));
  EXPECT_THAT(message({.host = "example.org", .allow_unauthenticated = true}),
              HasSubstr("neither an IP address"));
  EXPECT_THAT(message({.host = "192.0.2.1", .allow_unauthenticated = true}),
              HasSubstr("cannot listen on 192.0.2.1"));
  EXPECT_THAT(message({.tls_certificate_file = "x"}), HasSubstr("TLS needs"));
  EXPECT_THAT(message({.tls_certificate_file = "missing.pem", .tls_key_file = "x"}),
              HasSubstr("missing.pem"));
  EXPECT_THAT(message({.worker_threads = 0}), HasSubstr("threads"));
  EXPECT_EQ(message({.host = "0.0.0.0", .allow_unauthenticated = true}), "");

  const auto server = start();
  ServerOptions same;
  same.port = server->port();
  const auto second = Server::start(same, echo);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("cannot listen on 127.0.0.1:"));
}

TEST(HttpServer, LocalhostMeansBothLoopbackAddresses) {
  const auto server = start({.host = "localhost"});
  TestClient v4(server->port());
  EXPECT_EQ(v4.ask(get("/")).status, 200);
  TestClient v6(server->port(), AF_INET6);
  if (!v6.connected()) GTEST_SKIP() << "no IPv6 on this machine";
  EXPECT_EQ(v6.ask("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n").status, 200);
}

}  // namespace
}  // namespace ds4::server::http
