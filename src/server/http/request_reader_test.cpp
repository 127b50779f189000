#include "server/http/request_reader.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ds4::server::http {
namespace {

using State = RequestReader::State;

struct Outcome {
  State state = State::header;
  int status = 0;
  IncomingRequest incoming;
  std::string rest;
};

/// Shows `bytes` in pieces of `piece` bytes.
Outcome read(std::string_view bytes, size_t piece, RequestLimits limits = {}) {
  RequestReader reader(limits);
  std::string pending;
  while (!bytes.empty() || !pending.empty()) {
    const size_t before = pending.size();
    pending += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
    const State state = reader.state();
    const size_t taken = reader.consume(pending);
    EXPECT_LE(taken, pending.size());
    pending.erase(0, taken);
    if (reader.state() == State::complete || reader.state() == State::refused) break;
    if (taken == 0 && pending.size() == before && state == reader.state()) break;
  }
  Outcome outcome{reader.state(), 0, {}, pending + std::string(bytes)};
  if (reader.state() == State::refused) outcome.status = reader.refusal().status;
  outcome.incoming = reader.incoming();
  return outcome;
}

Outcome read_all_ways(std::string_view bytes, RequestLimits limits = {}) {
  Outcome whole = read(bytes, bytes.size(), limits);
  for (const size_t piece : {1, 2, 3, 7, 64}) {
    const Outcome cut = read(bytes, piece, limits);
    EXPECT_EQ(cut.state, whole.state) << piece;
    EXPECT_EQ(cut.status, whole.status) << piece;
    if (whole.state == State::complete) {
      EXPECT_EQ(cut.incoming.request.body, whole.incoming.request.body) << piece;
      EXPECT_EQ(cut.incoming.request.headers, whole.incoming.request.headers) << piece;
      EXPECT_EQ(cut.rest, whole.rest) << piece;
    }
  }
  return whole;
}

TEST(RequestReader, PathQueryHeadersAndWhatFollows) {
  const Outcome outcome = read_all_ways(
      "\r\nGET /v1/models?limit=2?x HTTP/1.1\r\nHost: a:1\r\nX:  two words \t\r\nEmpty:\r\n\r\nGET / "
      "HTTP/1.1\r\n");
  ASSERT_EQ(outcome.state, State::complete);
  const Request& request = outcome.incoming.request;
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.path, "/v1/models");
  EXPECT_EQ(request.query, "limit=2?x");
  EXPECT_EQ(request.header("x"), "two words");
  EXPECT_EQ(request.header("empty"), "");
  EXPECT_EQ(outcome.incoming.authority, "a:1");
  EXPECT_TRUE(outcome.incoming.keep_alive);
  EXPECT_FALSE(outcome.incoming.has_body);
  EXPECT_EQ(outcome.rest, "GET / HTTP/1.1\r\n");
}

TEST(RequestReader, HeadIsAGetWithoutABody) {
  const Outcome outcome = read_all_ways("HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  ASSERT_EQ(outcome.state, State::complete);
  EXPECT_EQ(outcome.incoming.request.method, "GET");
  EXPECT_TRUE(outcome.incoming.request.head_only);
  EXPECT_FALSE(outcome.incoming.keep_alive);
}

TEST(RequestReader, AbsoluteTargets) {
  const Outcome outcome = read_all_ways("GET http://b:9?q HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_EQ(outcome.state, State::complete);
  EXPECT_EQ(outcome.incoming.authority, "b:9");
  EXPECT_EQ(outcome.incoming.request.path, "/");
  EXPECT_EQ(outcome.incoming.request.query, "q");
  EXPECT_EQ(read_all_ways("GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
  EXPECT_EQ(read_all_ways("GET /x://y HTTP/1.1\r\nHost: a\r\n\r\n").incoming.request.path, "/x://y");
  EXPECT_EQ(read_all_ways("GET v1/models HTTP/1.1\r\nHost: a\r\n\r\n").status, 400);
}

TEST(RequestReader, BodiesWithLengthAndInChunks) {
  const std::string counted = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET";
  Outcome outcome = read_all_ways(counted);
  ASSERT_EQ(outcome.state, State::complete);
  EXPECT_EQ(outcome.incoming.request.body, "hello");
  EXPECT_EQ(outcome.rest, "GET");

  const std::string chunked =
      "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nExpect: 100-Continue\r\n\r\n"
      "5\r\nhello\r\n1;name=\"v\"\r\n \r\nA\r\n0123456789\r\n0\r\nHost: evil\r\nX: late\r\n\r\nrest";
  outcome = read_all_ways(chunked);
  ASSERT_EQ(outcome.state, State::complete);
  EXPECT_EQ(outcome.incoming.request.body, "hello 0123456789");
  EXPECT_EQ(outcome.incoming.authority, "a");
  EXPECT_EQ(outcome.incoming.request.header("x"), std::nullopt);
  EXPECT_TRUE(outcome.incoming.expects_continue);
  EXPECT_EQ(outcome.rest, "rest");

  const Outcome no_chunks =
      read_all_ways("POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n0");
  EXPECT_EQ(no_chunks.state, State::complete);
  EXPECT_EQ(no_chunks.rest, "0");

  const Outcome empty = read_all_ways("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(empty.state, State::complete);
  EXPECT_FALSE(empty.incoming.has_body);
}

TEST(RequestReader, TheHeaderIsJudgedBeforeTheBodyIsTaken) {
  const std::string bytes = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
  RequestReader reader({});
  EXPECT_EQ(reader.consume(bytes), bytes.size() - 5);
  EXPECT_EQ(reader.state(), State::body);
  EXPECT_TRUE(reader.incoming().has_body);
}

TEST(RequestReader, OldClientsCloseUnlessTheyAskOtherwise) {
  EXPECT_FALSE(read_all_ways("GET / HTTP/1.0\r\n\r\n").incoming.keep_alive);
  EXPECT_TRUE(read_all_ways("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").incoming.keep_alive);
}

TEST(RequestReader, RefusesWhatTwoReadersCouldUnderstandDifferently) {
  const std::string post = "POST /x HTTP/1.1\r\nHost: a\r\n", get = "GET / HTTP/1.1\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
      {post + "Content-Length: 3, 3\r\n\r\nabc", 400},
      {post + "Content-Length: +3\r\n\r\nabc", 400},
      {post + "Content-Length: -3\r\n\r\nabc", 400},
      {post + "Content-Length: 0x3\r\n\r\nabc", 400},
      {post + "Content-Length:\r\n\r\nabc", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
      {post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding:\x0b"
              "chunked\r\n\r\n0\r\n\r\n",
       400},
      {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "\r\n", 411},
      {post + "Content-Length: 0\r\n X: folded\r\n\r\n", 400},
      {post + "Content-Length: 0\r\nX: y\r\n\tz\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {get + "Host: a\nX: y\r\n\r\n", 400},
      {get + "Host: a\rX: y\r\n\r\n", 400},
      {get + "Host: a\n\n", 400},
      {"\n" + get + "Host: a\r\n\r\n", 400},
      {get + std::string("Host: a\0b\r\n\r\n", 13), 400},
      {get + "Host: a\r\nHost: a\r\n\r\n", 400},
      {get + "\r\n", 400},
      {get + "Host: a\r\n: empty\r\n\r\n", 400},
      {get + "Host: a\r\nNo colon\r\n\r\n", 400},
      {get + "Host: a\r\nExpect: sandwich\r\n\r\n", 417},
      {post + "Content-Length: 3\r\nContent-Encoding: gzip\r\n\r\nabc", 415},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET / HTTQ/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"\x16\x03\x01\x02", 400},
      {std::string(40, 'A') + " / HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"\r\n\r\n\r\n\r\n\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : cases) {
    const Outcome outcome = read_all_ways(bytes);
    EXPECT_EQ(outcome.state, State::refused) << bytes;
    EXPECT_EQ(outcome.status, status) << bytes;
  }
}

TEST(RequestReader, RefusesMalformedChunks) {
  const std::string post = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body : {"x\r\nabc\r\n0\r\n\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3 x\r\nabc\r\n0\r\n\r\n",
                           "-3\r\nabc\r\n", "3\nabc\r\n0\r\n\r\n", "11111111111111111\r\nabc", "\r\n\r\n\r\n",
                           "0\r\nX\r\n\r\n", "0\r\n X: folded\r\n\r\n", "3 \r\nabc\r\n0\r\n\r\n",
                           "3\r\nabc\n0\r\n\r\n", "0\r\n: x\r\n\r\n", "3;\x01\r\nabc", ";\r\n"}) {
    const Outcome outcome = read_all_ways(post + body);
    EXPECT_EQ(outcome.state, State::refused) << body;
    EXPECT_EQ(outcome.status, 400) << body;
  }
  EXPECT_EQ(read_all_ways(post + "3;x=" + std::string(9000, 'y')).status, 400);
  EXPECT_EQ(read_all_ways(post + "0\r\nX: " + std::string(9000, 'y')).status, 400);
}

TEST(RequestReader, Limits) {
  const RequestLimits limits{.max_header_bytes = 1000, .max_target_bytes = 100, .max_body_bytes = 10};
  const std::string host = " HTTP/1.1\r\nHost: a\r\n";
  const auto target = [&](size_t size) { return "GET /" + std::string(size - 1, 'x') + host + "\r\n"; };
  EXPECT_EQ(read_all_ways(target(100), limits).state, State::complete);
  EXPECT_EQ(read_all_ways(target(150), limits).status, 414);
  EXPECT_EQ(read_all_ways("GET /" + std::string(150, 'x'), limits).status, 414);

  const auto header = [&](size_t total) {
    const std::string start = "GET /" + host + "X: ", end = "\r\n\r\n";
    return start + std::string(total - start.size() - end.size(), 'y') + end;
  };
  EXPECT_EQ(read_all_ways(header(1000), limits).state, State::complete);
  EXPECT_EQ(read_all_ways(header(1001), limits).status, 431);
  EXPECT_EQ(read_all_ways("GET /" + host + std::string(2000, 'X'), limits).status, 431);

  const auto post = [&](const std::string& rest) { return read_all_ways("POST /p" + host + rest, limits); };
  EXPECT_EQ(post("Content-Length: 10\r\n\r\n0123456789").state, State::complete);
  EXPECT_EQ(post("Content-Length: 11\r\n\r\n").status, 413);
  EXPECT_EQ(post("Content-Length: 11\r\n\r\n").incoming.request.path, "/p");
  EXPECT_EQ(post("Content-Length: 18446744073709551615\r\n\r\n").status, 413);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n").state,
            State::complete);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n6\r\n").status, 413);
  EXPECT_EQ(post("Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n").status, 413);
}

}  // namespace
}  // namespace ds4::server::http
