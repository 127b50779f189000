#include "server/http/response_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ds4::server::http {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ResponseText, HeadOfACompleteAnswer) {
  const std::string head = response_head(404, "application/json", {{"X-One", "1"}}, {.body_bytes = 12});
  EXPECT_TRUE(head.starts_with("HTTP/1.1 404 Not Found\r\nDate: "));
  EXPECT_TRUE(
      head.ends_with(" GMT\r\nContent-Type: application/json\r\nContent-Length: 12\r\nX-One: 1\r\n\r\n"))
      << head;
}

TEST(ResponseText, FramingAndConnection) {
  const std::string chunked = response_head(200, "text/event-stream", {}, {.framing = Framing::chunked});
  EXPECT_THAT(chunked, HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  EXPECT_THAT(chunked, Not(HasSubstr("Connection")));
  const std::string old =
      response_head(200, "", {}, {.framing = Framing::until_close, .http_1_0 = true, .keep_alive = false});
  EXPECT_THAT(old, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(old, Not(HasSubstr("Content-")));
  EXPECT_THAT(response_head(200, "", {}, {.http_1_0 = true}), HasSubstr("\r\nConnection: keep-alive\r\n"));
}

TEST(ResponseText, CorsHeadersOnlyWhenAsked) {
  EXPECT_THAT(response_head(200, "", {}, {}), Not(HasSubstr("Access-Control")));
  const std::string any = response_head(200, "", {}, {.cors_origin = "*"});
  EXPECT_THAT(any, HasSubstr("\r\nAccess-Control-Allow-Origin: *\r\n"));
  EXPECT_THAT(any, Not(HasSubstr("Vary")));
  EXPECT_THAT(response_head(200, "", {}, {.cors_origin = "https://a"}), HasSubstr("\r\nVary: Origin\r\n"));
}

TEST(ResponseText, ValuesCannotSplitTheAnswer) {
  const std::string head = response_head(
      200, "text/plain\r\nX-Evil: 1",
      {{"A", "b\r\nX-Evil: 2"}, {"X-Evil: 3\r\nB", "c"}, {"Content-Length", "9"}}, {.body_bytes = 5});
  EXPECT_THAT(head, Not(HasSubstr("X-Evil")));
  EXPECT_THAT(head, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(head, Not(HasSubstr("Content-Length: 9")));
}

TEST(ResponseText, Chunks) {
  std::string out;
  append_chunk(out, "");
  EXPECT_EQ(out, "");
  append_chunk(out, std::string(26, 'x'));
  EXPECT_EQ(out, "1a\r\n" + std::string(26, 'x') + "\r\n");
}

TEST(ResponseText, Dates) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");
}

}  // namespace
}  // namespace ds4::server::http
