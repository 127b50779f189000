// Streams: framing, keepalives, clients that leave, clients that do not read.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "server/http/server.hpp"
#include "server/http/test_client.hpp"
#include "server/http/test_exchanges.hpp"

namespace ds4::server::http {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class HttpStream : public HeldServerTest {
 protected:
  /// Sends a request and returns its exchange, streaming if asked.
  std::shared_ptr<Exchange> open(TestClient& client, bool streaming = true) {
    client.send(post("/stream", "{}"));
    std::shared_ptr<Exchange> exchange = held_.next().exchange;
    if (streaming) {
      exchange->begin_stream(200, "text/event-stream", {});
      EXPECT_TRUE(client.receive_until("\r\n\r\n"));
      client.forget_received();
    }
    return exchange;
  }
};

TEST_F(HttpStream, PiecesArriveAsTheyAreWrittenAndTheConnectionGoesOn) {
  start();
  TestClient client(server_->port());
  for (int round = 0; round < 2; ++round) {
    client.send(get("/stream"));
    const auto exchange = held_.next().exchange;
    exchange->begin_stream(200, "text/event-stream", {{"X-Test", "1"}});
    exchange->write("data: one\n\n");
    ASSERT_TRUE(client.receive_until("data: one\n\n"));  // before the end
    exchange->write("");
    exchange->write("data: two\n\n");
    exchange->end();
    exchange->write("late");
    const ClientResponse response = client.response();
    EXPECT_TRUE(response.complete);
    EXPECT_EQ(response.body, "data: one\n\ndata: two\n\n");
    EXPECT_EQ(response.header("cache-control"), "no-cache");
    EXPECT_EQ(response.header("content-type"), "text/event-stream");
    EXPECT_EQ(response.header("transfer-encoding"), "chunked");
    EXPECT_EQ(response.header("x-test"), "1");
    EXPECT_FALSE(exchange->gone());
    EXPECT_TRUE(eventually([&] { return exchange->queued_bytes() == 0; }));
  }
}

TEST_F(HttpStream, OldClientsReadUpToTheEndOfTheConnection) {
  start();
  TestClient client(server_->port());
  client.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto exchange = held_.next().exchange;
  exchange->begin_stream(200, "text/plain", {});
  exchange->write("one ");
  exchange->write("two");
  exchange->end();
  const ClientResponse response = client.response();
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.body, "one two");
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_EQ(response.header("connection"), "close");
}

TEST_F(HttpStream, HeadGetsNoBody) {
  start();
  TestClient client(server_->port());
  client.send("HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto exchange = held_.next().exchange;
  exchange->begin_stream(200, "text/plain", {});
  exchange->set_keepalive("x", 1ms);
  exchange->write("body");
  exchange->end();
  EXPECT_EQ(client.response(true).status, 200);
  client.send(get("/after"));
  held_.next().exchange->respond({.body = "after"});
  EXPECT_EQ(client.response().body, "after");
}

TEST_F(HttpStream, AStreamWithoutAnEndBreaksOffVisibly) {
  start();
  TestClient client(server_->port());
  auto exchange = open(client);
  exchange->write("part");
  exchange.reset();
  ASSERT_TRUE(client.receive_until("4\r\npart\r\n"));
  client.forget_received();
  EXPECT_TRUE(client.closed_by_peer());
}

TEST_F(HttpStream, KeepalivesComeByTheClockAndStopWithTheStream) {
  start();
  TestClient client(server_->port());
  client.send(get("/stream"));
  const auto exchange = held_.next().exchange;
  exchange->set_keepalive(": wait\n\n", 50ms);
  std::this_thread::sleep_for(120ms);
  const auto began = Clock::now();
  exchange->begin_stream(200, "text/event-stream", {});
  ASSERT_TRUE(client.receive_until("8\r\n: wait\n\n\r\n8\r\n: wait\n\n\r\n8\r\n: wait\n\n\r\n"));
  EXPECT_GE(Clock::now() - began, 150ms);  // three intervals: none was saved up before the stream
  EXPECT_LT(Clock::now() - began, 2s);

  // Another text from now on.
  exchange->set_keepalive("ping", 20ms);
  ASSERT_TRUE(client.receive_until("4\r\nping\r\n"));
  // Off.
  exchange->set_keepalive("", 20ms);
  std::this_thread::sleep_for(50ms);
  exchange->write("last");
  ASSERT_TRUE(client.receive_until("4\r\nlast\r\n"));
  client.forget_received();
  std::this_thread::sleep_for(100ms);
  exchange->set_keepalive("ping", 20ms);
  exchange->end();
  ASSERT_TRUE(client.receive_until("0\r\n\r\n"));
  std::this_thread::sleep_for(60ms);
  client.send(get("/after"));
  held_.next().exchange->respond({.body = "after"});
  client.forget_received();
  EXPECT_EQ(client.response().body, "after");  // nothing between the answers
}

TEST_F(HttpStream, NoKeepaliveWhilePiecesAreWritten) {
  start();
  TestClient client(server_->port());
  const auto exchange = open(client);
  exchange->set_keepalive("KEEPALIVE", 400ms);
  for (int i = 0; i < 60; ++i) {
    exchange->write("x");
    std::this_thread::sleep_for(10ms);
  }
  exchange->end();
  ASSERT_TRUE(client.receive_until("0\r\n\r\n"));
  EXPECT_EQ(client.received().find("KEEPALIVE"), std::string::npos);
}

/// What `leave` does to the client must be noticed soon, by flag and by callback.
void expect_gone(const std::shared_ptr<Exchange>& exchange, const std::function<void()>& leave) {
  std::promise<void> told;
  exchange->on_gone([&] { told.set_value(); });
  EXPECT_FALSE(exchange->gone());
  const auto left = Clock::now();
  leave();
  ASSERT_EQ(told.get_future().wait_for(5s), std::future_status::ready);
  EXPECT_LT(Clock::now() - left, 1s);  // about a millisecond, but for a busy machine
  EXPECT_TRUE(exchange->gone());
  bool at_once = false;
  exchange->on_gone([&] { at_once = true; });
  EXPECT_TRUE(at_once);
}

TEST_F(HttpStream, AClientThatLeavesIsNoticed) {
  start();
  for (const bool streaming : {false, true}) {
    TestClient fin(server_->port()), rst(server_->port()), half(server_->port()), pipelining(server_->port());
    expect_gone(open(fin, streaming), [&] { fin.close(); });
    expect_gone(open(rst, streaming), [&] { rst.reset(); });
    expect_gone(open(half, streaming), [&] { half.shutdown_send(); });
    const auto exchange = open(pipelining, streaming);
    pipelining.send(get("/next"));
    expect_gone(exchange, [&] { pipelining.reset(); });
  }
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 0; }));
  EXPECT_TRUE(eventually([&] { return server_->counters().requests_gone == 8; }));
  EXPECT_EQ(server_->counters().requests_active, 0u);
}

TEST_F(HttpStream, WhoOnlyStoppedSendingStillGetsTheAnswer) {
  start();
  TestClient client(server_->port());
  const auto exchange = open(client, false);
  client.shutdown_send();
  EXPECT_TRUE(eventually([&] { return exchange->gone(); }));
  exchange->respond({.body = "anyway"});
  EXPECT_EQ(client.response().body, "anyway");
  EXPECT_TRUE(client.closed_by_peer());
}

TEST_F(HttpStream, WritingToAClientThatLeftDoesNoHarm) {
  start();
  TestClient client(server_->port());
  const auto exchange = open(client);
  client.reset();
  for (int i = 0; i < 1000; ++i) exchange->write(std::string(1000, 'x'));
  exchange->end();
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 0; }));
  TestClient next(server_->port());
  next.send(get("/next"));
  held_.next().exchange->respond({.body = "next"});
  EXPECT_EQ(next.response().body, "next");
}

TEST_F(HttpStream, ACallbackMayHoldItsOwnExchange) {
  start();
  TestClient client(server_->port());
  std::weak_ptr<Exchange> weak;
  {
    auto exchange = open(client);
    weak = exchange;
    exchange->on_gone([exchange] {});
    exchange->end();
  }
  EXPECT_TRUE(eventually([&] { return weak.expired(); }));
}

TEST_F(HttpStream, TooMuchUnreadOutputEndsTheStream) {
  start({.max_queued_bytes = 100'000});
  TestClient slow(server_->port(), AF_INET, 4096), other(server_->port());
  const auto exchange = open(slow);
  std::atomic<bool> told = false;
  exchange->on_gone([&] { told = true; });
  size_t most_queued = 0;
  // The kernel takes some megabytes before anything is queued here.
  for (int i = 0; i < 100'000 && !exchange->gone(); ++i) {
    exchange->write(std::string(1000, 'x'));
    most_queued = std::max(most_queued, exchange->queued_bytes());
  }
  EXPECT_TRUE(exchange->gone());
  EXPECT_TRUE(eventually([&] { return told.load(); }));
  EXPECT_LE(most_queued, 100'000u);
  other.send(get("/other"));
  held_.next().exchange->respond({.body = "other"});
  EXPECT_EQ(other.response().body, "other");
  EXPECT_TRUE(eventually([&] { return server_->counters().connections_open == 1; }));
}

TEST_F(HttpStream, AClientThatStopsReadingIsGivenUp) {
  start({.max_queued_bytes = 64 << 20, .write_stall_timeout = 200ms});
  TestClient client(server_->port(), AF_INET, 4096);
  const auto exchange = open(client);
  exchange->set_keepalive("ping", 10ms);
  exchange->write(std::string(16 << 20, 'x'));
  const size_t queued = exchange->queued_bytes();
  EXPECT_GT(queued, 0u);
  EXPECT_TRUE(eventually([&] { return exchange->gone(); }));
  EXPECT_LE(exchange->queued_bytes(), queued);  // no keepalives on top
}

TEST_F(HttpStream, ManyStreamsAtTheSameTime) {
  constexpr int clients = 200, pieces = 20;
  ServerOptions options{.max_connections = 300};
  options.port = 0;
  auto server = Server::start(options, [&](Request request, std::shared_ptr<Exchange> exchange) {
    exchange->begin_stream(200, "text/plain", {});
    for (int i = 0; i < pieces; ++i) exchange->write(request.path + "\n");
    exchange->end();
  });
  ASSERT_TRUE(server);
  std::vector<std::unique_ptr<TestClient>> connected;
  for (int i = 0; i < clients; ++i) connected.push_back(std::make_unique<TestClient>((*server)->port()));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < clients; ++i) connected[i]->send(get(fmt::format("/{}", i)));
    for (int i = 0; i < clients; ++i) {
      const ClientResponse response = connected[i]->response();
      EXPECT_TRUE(response.complete);
      std::string expected;
      for (int piece = 0; piece < pieces; ++piece) expected += fmt::format("/{}\n", i);
      EXPECT_EQ(response.body, expected);
    }
  }
  EXPECT_EQ((*server)->counters().connections_open, static_cast<uint64_t>(clients));
  EXPECT_EQ((*server)->counters().requests, static_cast<uint64_t>(3 * clients));
}

}  // namespace
}  // namespace ds4::server::http
