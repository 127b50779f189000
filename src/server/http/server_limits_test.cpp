// Clients that send slowly, too much or too often, and the end of the server.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server/http/server.hpp"
#include "server/http/test_client.hpp"
#include "server/http/test_exchanges.hpp"

namespace ds4::server::http {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class HttpLimits : public HeldServerTest {};

TEST_F(HttpLimits, AHeaderThatTakesTooLongIsRefused) {
  start({.header_timeout = 150ms});
  TestClient client(server_->port());
  std::thread drip(
      [&] { client.send_slowly("GET / HTTP/1.1\r\nHost: localhost\r\nX: yyyyyyyyyyyyyyyyy", 10ms); });
  const ClientResponse response = client.response();
  drip.join();
  EXPECT_EQ(response.status, 408);
  client.close();
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 0; }));
}

TEST_F(HttpLimits, ABodyThatStopsArrivingIsRefused) {
  start({.body_timeout = 150ms});
  TestClient client(server_->port());
  EXPECT_EQ(client.ask("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123").status, 408);
}

TEST_F(HttpLimits, ABodyThatDripsIsRefusedThoughItNeverStops) {
  start({.body_timeout = 300ms});
  TestClient client(server_->port());
  client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n");
  std::atomic<bool> answered = false;
  std::atomic<int> sent = 0;
  std::thread drip([&] {
    for (; !answered && sent < 500; ++sent) client.send_slowly("x", 10ms);
  });
  EXPECT_EQ(client.response().status, 408);
  answered = true;
  drip.join();
  EXPECT_LT(sent, 500);
}

TEST_F(HttpLimits, IdleConnectionsAreClosed) {
  start({.header_timeout = 100ms, .idle_timeout = 100ms});
  TestClient silent(server_->port()), used(server_->port());
  used.send(get("/"));
  held_.next().exchange->respond({.body = "x"});
  EXPECT_EQ(used.response().body, "x");
  EXPECT_TRUE(silent.closed_by_peer());
  EXPECT_TRUE(used.closed_by_peer());
}

TEST_F(HttpLimits, AnAnswerMayTakeLongerThanAnyTimeout) {
  start({.header_timeout = 50ms, .body_timeout = 50ms, .idle_timeout = 50ms, .write_stall_timeout = 50ms});
  TestClient client(server_->port());
  client.send(post("/", "x"));
  const auto exchange = held_.next().exchange;
  std::this_thread::sleep_for(250ms);
  EXPECT_FALSE(exchange->gone());
  exchange->respond({.body = "late"});
  EXPECT_EQ(client.response().body, "late");
}

TEST_F(HttpLimits, TooManyConnectionsAreToldSo) {
  start({.max_connections = 2});
  TestClient one(server_->port()), two(server_->port());
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 2; }));
  TestClient three(server_->port());
  const ClientResponse response = three.ask(get("/"));
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.header("retry-after"), "1");
  EXPECT_TRUE(three.closed_by_peer());
  EXPECT_EQ(server_->counters().connections_refused, 1u);
  three.close();
  one.close();
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 1; }));
  TestClient four(server_->port());
  four.send(get("/"));
  held_.next().exchange->respond({.body = "in"});
  EXPECT_EQ(four.response().body, "in");
}

TEST_F(HttpLimits, AllBodiesTogetherAreBounded) {
  start({.max_total_body_bytes = 100'000});
  const std::string body(60'000, 'x');
  TestClient one(server_->port()), two(server_->port());
  one.send(post("/", body));
  auto first = held_.next();
  EXPECT_EQ(first.request.body.size(), body.size());
  EXPECT_EQ(two.ask(post("/", body)).status, 503);
  first.exchange->respond({.body = "done"});
  EXPECT_EQ(one.response().body, "done");
  EXPECT_TRUE(eventually([&] { return server_->counters().requests_active == 0; }));
  TestClient three(server_->port());
  three.send(post("/", body));
  held_.next().exchange->respond({.body = "in"});
  EXPECT_EQ(three.response().body, "in");
}

TEST_F(HttpLimits, PipelinedBytesAreNotReadWithoutEnd) {
  start({.max_header_bytes = 4096});
  TestClient client(server_->port());
  client.send(get("/first"));
  auto first = held_.next();
  const uint64_t before = server_->counters().bytes_in;
  const timeval limit{.tv_sec = 0, .tv_usec = 300'000};
  ::setsockopt(client.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  std::string flood;
  for (int i = 0; i < 1000; ++i) flood += get("/flood");
  while (client.send(flood)) {
  }
  EXPECT_LT(server_->counters().bytes_in - before, 100'000u);
  first.exchange->respond({.body = "x"});
  EXPECT_EQ(client.response().body, "x");
  held_.next().exchange->respond({.body = "y"});
  EXPECT_EQ(client.response().body, "y");
}

TEST_F(HttpLimits, DrainingFinishesWhatRunsAndTakesNothingNew) {
  start();
  TestClient idle(server_->port()), busy(server_->port()), streaming(server_->port());
  streaming.send(get("/stream"));
  const auto stream = held_.next().exchange;
  stream->begin_stream(200, "text/plain", {});
  busy.send(get("/busy"));
  const auto answer = held_.next().exchange;

  server_->stop_accepting();
  EXPECT_TRUE(idle.closed_by_peer());
  EXPECT_TRUE(eventually([&] { return !TestClient(server_->port()).connected(); }));
  EXPECT_FALSE(server_->wait_drained(50ms));
  EXPECT_FALSE(answer->gone());
  answer->respond({.body = "done"});
  const ClientResponse response = busy.response();
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(response.header("connection"), "close");
  EXPECT_TRUE(busy.closed_by_peer());
  stream->write("end");
  stream->end();
  EXPECT_EQ(streaming.response().body, "end");
  EXPECT_TRUE(streaming.closed_by_peer());
  idle.close();
  busy.close();
  streaming.close();
  EXPECT_TRUE(server_->wait_drained(5s));
  server_->stop();
}

TEST_F(HttpLimits, DrainingWaitsForNobodyWhoIsStillSendingARequest) {
  start({.header_timeout = 20s, .body_timeout = 20s});
  TestClient header(server_->port()), body(server_->port());
  header.send("GET / HTTP/1.1\r\nHost: loc");
  body.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123");
  EXPECT_TRUE(eventually([&] { return server_->counters().bytes_in >= 75; }));
  server_->stop_accepting();
  EXPECT_EQ(header.response().status, 503);
  EXPECT_EQ(body.response().status, 503);
  header.close();
  body.close();
  EXPECT_TRUE(server_->wait_drained(5s));
}

TEST_F(HttpLimits, StopBreaksOffWhatIsLeft) {
  start();
  TestClient waiting(server_->port()), streaming(server_->port());
  waiting.send(get("/wait"));
  const auto answer = held_.next().exchange;
  streaming.send(get("/stream"));
  const auto stream = held_.next().exchange;
  stream->begin_stream(200, "text/plain", {});
  std::atomic<int> told = 0;
  answer->on_gone([&] { ++told; });
  stream->on_gone([&] { ++told; });
  server_->stop();
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(answer->gone());
  EXPECT_TRUE(waiting.closed_by_peer());
  // Exchanges outlive the server.
  server_.reset();
  stream->set_keepalive("x", 1ms);
  stream->write("x");
  stream->end();
  answer->respond({});
}

TEST_F(HttpLimits, StopWhileClientsComeGoAndSend) {
  for (int round = 0; round < 5; ++round) {
    ServerOptions options;
    options.port = 0;
    auto server = Server::start(options, [](Request request, std::shared_ptr<Exchange> exchange) {
      exchange->begin_stream(200, "text/plain", {});
      exchange->set_keepalive("k", 1ms);
      for (int i = 0; i < 10; ++i) exchange->write(request.path);
      if (request.id % 3 != 0) exchange->end();
    });
    ASSERT_TRUE(server);
    std::atomic<bool> done = false;
    std::vector<std::thread> clients;
    for (int i = 0; i < 4; ++i) {
      clients.emplace_back([&, i] {
        for (int n = 0; !done; ++n) {
          TestClient client((*server)->port());
          if (!client.send(get("/one") + get("/two"))) continue;
          if (n % 3 != i % 3) client.receive_some();
          if (n % 2 == 0) client.reset();
        }
      });
    }
    EXPECT_TRUE(eventually([&] { return (*server)->counters().requests >= 4; }));
    std::this_thread::sleep_for(50ms);
    (*server)->stop();
    done = true;
    for (std::thread& client : clients) client.join();
    const Counters counters = (*server)->counters();
    EXPECT_EQ(counters.connections_open, 0u);
    EXPECT_EQ(counters.requests_active, 0u);
  }
}

}  // namespace
}  // namespace ds4::server::http
