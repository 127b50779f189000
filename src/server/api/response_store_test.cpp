#include "server/api/response_store.hpp"

#include <gtest/gtest.h>

namespace ds4::server::api {
namespace {

StoredResponse response(const std::string& text) {
  ChatMessage message;
  message.content = text;
  return {{message}, "{}", {}};
}

TEST(ResponseStore, KeepsTheLastUsed) {
  ResponseStore store({2, 1 << 20});
  store.put("a", response("1"));
  store.put("b", response("2"));
  ASSERT_NE(store.get("a"), nullptr);
  store.put("c", response("3"));
  EXPECT_EQ(store.get("b"), nullptr);
  EXPECT_EQ(store.get("a")->messages[0].content, "1");
  EXPECT_EQ(store.get("c")->messages[0].content, "3");
  store.put("a", response("4"));
  EXPECT_EQ(store.get("a")->messages[0].content, "4");
  EXPECT_EQ(store.size(), 2u);
  EXPECT_TRUE(store.erase("a"));
  EXPECT_FALSE(store.erase("a"));
  EXPECT_TRUE(store.erase("c"));
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, FindsResponsesByTheirItems) {
  ResponseStore store({2, 1 << 20});
  const auto put = [&](const std::string& id, std::vector<std::string> items) {
    StoredResponse stored = response(id);
    stored.item_ids = std::move(items);
    store.put(id, std::move(stored));
  };
  put("a", {"rs_1", "msg_1"});
  put("b", {"msg_2"});
  EXPECT_EQ(store.get_of_item("msg_1"), store.get("a"));
  EXPECT_EQ(store.get_of_item("msg_2"), store.get("b"));
  EXPECT_NE(store.get_of_item("rs_1"), nullptr);  // used last
  put("c", {});
  EXPECT_EQ(store.get_of_item("msg_2"), nullptr);
  put("a", {"msg_3"});
  EXPECT_EQ(store.get_of_item("msg_1"), nullptr);
  EXPECT_EQ(store.get_of_item("msg_3"), store.get("a"));
  EXPECT_TRUE(store.erase("a"));
  EXPECT_EQ(store.get_of_item("msg_3"), nullptr);
  EXPECT_TRUE(store.erase("c"));
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, IsBoundedInBytes) {
  ResponseStore store({100, 10'000});
  const auto kept = [&] { return store.get("a"); };
  store.put("a", response(std::string(4'000, 'x')));
  const auto held = kept();
  store.put("b", response(std::string(4'000, 'x')));
  EXPECT_EQ(store.size(), 2u);
  store.put("c", response(std::string(4'000, 'x')));
  EXPECT_EQ(store.size(), 2u);
  EXPECT_EQ(kept(), nullptr);
  EXPECT_EQ(held->messages[0].content.size(), 4'000u);
  store.put("d", response(std::string(10'000, 'x')));
  EXPECT_EQ(store.get("d"), nullptr);
  EXPECT_EQ(store.size(), 2u);
  EXPECT_LE(store.bytes(), 10'000u);
}

}  // namespace
}  // namespace ds4::server::api
