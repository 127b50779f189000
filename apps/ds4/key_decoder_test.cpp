#include "key_decoder.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ds4::cli {
namespace {

std::vector<KeyEvent> keys(std::string_view bytes, size_t step) {
  KeyDecoder decoder;
  std::vector<KeyEvent> events;
  for (size_t i = 0; i < bytes.size(); i += step) {
    decoder.feed(bytes.substr(i, step));
    while (auto event = decoder.next()) events.push_back(*event);
  }
  return events;
}

Key only_key(std::string_view bytes, size_t step) {
  const auto events = keys(bytes, step);
  EXPECT_EQ(events.size(), 1u) << bytes;
  return events.empty() ? Key::unknown : events[0].key;
}

TEST(KeyDecoder, SequencesAtAnySplit) {
  const std::pair<const char*, Key> table[] = {
      {"\x1b[A", Key::up},
      {"\x1bOB", Key::down},
      {"\x1b[C", Key::right},
      {"\x1b[1;5D", Key::word_left},
      {"\x1b[1;5C", Key::word_right},
      {"\x1b[H", Key::home},
      {"\x1b[4~", Key::end},
      {"\x1bOF", Key::end},
      {"\x1b[3~", Key::del},
      {"\x1b\r", Key::newline},
      {"\x1b"
       "b",
       Key::word_left},
      {"\x1b\x7f", Key::cut_word_before},
      {"\r", Key::enter},
      {"\x03", Key::interrupt},
      {"\x04", Key::end_of_file},
      {"\x12", Key::search},
      {"\x1b[24~", Key::unknown},
      {"\x0b", Key::cut_line_end},
  };
  for (const auto& [bytes, key] : table) {
    for (size_t step = 1; step <= 6; ++step) EXPECT_EQ(only_key(bytes, step), key) << bytes + 1;
  }
}

TEST(KeyDecoder, TextComesInRunsOfWholeCharacters) {
  EXPECT_EQ(keys("abc", 3).size(), 1u);
  std::string joined;
  for (const auto& event : keys("a\u00e8\U0001F600z", 1)) {
    EXPECT_EQ(event.key, Key::text);
    joined += event.text;
  }
  EXPECT_EQ(joined, "a\u00e8\U0001F600z");
  EXPECT_EQ(keys("\xff\xfe", 1).size(), 2u);
}

TEST(KeyDecoder, PasteIsOneEvent) {
  const std::string bytes = "x\x1b[200~one\r\ntwo\rthree\x1b[31m\t\x03\x1b[201~\r";
  for (size_t step = 1; step <= bytes.size(); ++step) {
    const auto events = keys(bytes, step);
    ASSERT_EQ(events.size(), 3u) << step;
    EXPECT_EQ(events[1].key, Key::paste);
    EXPECT_EQ(events[1].text, "one\ntwo\nthree[31m\t");
    EXPECT_EQ(events[2].key, Key::enter);
  }
}

TEST(KeyDecoder, LoneEscapeNeedsAPause) {
  KeyDecoder decoder;
  decoder.feed("\x1b");
  EXPECT_FALSE(decoder.next());
  EXPECT_TRUE(decoder.waiting());
  EXPECT_EQ(decoder.timeout()->key, Key::escape);
  EXPECT_FALSE(decoder.waiting());
}

TEST(KeyDecoder, AnUnfinishedPasteDoesNotTimeOut) {
  KeyDecoder decoder;
  decoder.feed("\x1b[200~abc");
  EXPECT_FALSE(decoder.next());
  EXPECT_FALSE(decoder.timeout());
}

}  // namespace
}  // namespace ds4::cli
