#include "server/http/message.hpp"

#include <gtest/gtest.h>

namespace ds4::server::http {
namespace {

TEST(HttpMessage, HeadersAreFoundInAnyCaseAndTheFirstWins) {
  Request request;
  request.headers = {{"X-Api-Key", "one"}, {"x-api-key", "two"}, {"Accept", ""}};
  EXPECT_EQ(request.header("x-API-key"), "one");
  EXPECT_EQ(request.header("accept"), "");
  EXPECT_EQ(request.header("x-api"), std::nullopt);
  EXPECT_EQ(request.header("x-api-key2"), std::nullopt);
}

TEST(HttpMessage, StatusesHaveTheirNames) {
  EXPECT_EQ(reason_phrase(404), "Not Found");
  EXPECT_EQ(reason_phrase(529), "Overloaded");
  EXPECT_EQ(reason_phrase(599), "Error");
}

}  // namespace
}  // namespace ds4::server::http
