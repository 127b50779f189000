#include "server/http/access_rules.hpp"

#include <gtest/gtest.h>

namespace ds4::server::http {
namespace {

AccessRules make(const ServerOptions& options) {
  auto rules = AccessRules::make(options);
  EXPECT_TRUE(rules);
  return *rules;
}

int status(const AccessRules& rules, const std::string& authority, HeaderList headers = {},
           const std::string& path = "/v1/models", const std::string& method = "GET") {
  IncomingRequest incoming;
  incoming.authority = authority;
  incoming.request.method = method;
  incoming.request.path = path;
  incoming.request.headers = std::move(headers);
  const auto refusal = rules.check(incoming);
  return refusal ? refusal->status : 200;
}

TEST(AccessRules, HostMustBeAnAddressALoopbackNameOrAllowed) {
  const AccessRules rules = make({.host = "127.0.0.1", .allowed_hosts = {"gpu.lan", "other:81"}});
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000", "[::1]",
                           "192.168.1.5:8000", "[fe80::1]:8000", "gpu.lan", "GPU.lan:9", "other:81"}) {
    EXPECT_EQ(status(rules, host), 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "evil.example:localhost", "localhost:80x", "[::1",
                           "[::1]x", "[evil]", "", ":80", "other", "other:82", "fe80::1", "user@localhost"}) {
    EXPECT_EQ(status(rules, host), 403) << host;
  }
  EXPECT_EQ(status(make({.allowed_hosts = {"*"}}), "evil.example"), 200);
}

TEST(AccessRules, OldClientsNeedNoHost) {
  IncomingRequest incoming;
  incoming.http_1_0 = true;
  EXPECT_FALSE(make({}).check(incoming));
  incoming.authority = "evil.example";
  EXPECT_TRUE(make({}).check(incoming));
}

TEST(AccessRules, PagesFromElsewhereNeedCors) {
  const std::string host = "localhost:8000";
  const HeaderList same = {{"Origin", "http://localhost:8000"}}, other = {{"Origin", "https://evil.example"}};
  EXPECT_EQ(status(make({}), host, same), 200);
  EXPECT_EQ(status(make({}), host, other), 403);
  EXPECT_EQ(status(make({}), host, {{"Origin", "null"}}), 403);
  EXPECT_EQ(status(make({}), host, {{"Origin", "http://localhost:3000"}}), 403);
  EXPECT_EQ(status(make({.cors_origin = "*"}), host, other), 200);
  EXPECT_EQ(status(make({.cors_origin = "https://good.example"}), host, other), 403);
  EXPECT_EQ(status(make({.cors_origin = "https://good.example"}), host, {{"Origin", "https://good.example"}}),
            200);
}

TEST(AccessRules, Keys) {
  const AccessRules rules = make({.api_keys = {"sk-one", "sk-two"}});
  const std::string host = "localhost";
  EXPECT_EQ(status(rules, host), 401);
  EXPECT_EQ(status(rules, host, {{"Authorization", "Bearer sk-one"}}), 200);
  EXPECT_EQ(status(rules, host, {{"authorization", "bearer  sk-two "}}), 200);
  EXPECT_EQ(status(rules, host, {{"X-Api-Key", "sk-two"}}), 200);
  EXPECT_EQ(status(rules, host, {{"Authorization", "Bearer wrong"}, {"x-api-key", "sk-one"}}), 200);
  for (const char* value :
       {"Bearer sk-on", "Bearer sk-onee", "Bearer", "Bearer ", "sk-one", "Basic sk-one", ""}) {
    EXPECT_EQ(status(rules, host, {{"Authorization", value}}), 401) << value;
  }
  EXPECT_EQ(status(rules, host, {{"x-api-key", ""}}), 401);
  EXPECT_EQ(status(rules, host, {}, "/health"), 200);
  EXPECT_EQ(status(rules, host, {}, "/health2"), 401);
  EXPECT_EQ(status(rules, host, {}, "/v1/models", "OPTIONS"), 200);
  EXPECT_EQ(status(rules, "evil.example", {{"x-api-key", "sk-one"}}), 403);
}

TEST(AccessRules, OpenAddressesNeedAKeyUnlessForced) {
  for (const char* host : {"0.0.0.0", "::", "192.168.1.5", "[::]"}) {
    const auto rules = AccessRules::make({.host = host});
    ASSERT_FALSE(rules) << host;
    EXPECT_NE(rules.error().message.find("without an API key"), std::string::npos);
    EXPECT_TRUE(AccessRules::make({.host = host, .api_keys = {"k"}}));
    EXPECT_TRUE(AccessRules::make({.host = host, .allow_unauthenticated = true}));
  }
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"}) {
    EXPECT_TRUE(AccessRules::make({.host = host})) << host;
  }
  EXPECT_FALSE(AccessRules::make({.api_keys = {""}}));
  EXPECT_FALSE(AccessRules::make({.api_keys = {"two words"}}));
}

}  // namespace
}  // namespace ds4::server::http
