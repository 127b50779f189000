#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include "ds4/tokenizer.hpp"
#include "text/unicode_class.hpp"

namespace ds4::text {
namespace {

TEST(Utf8, RoundTripsEveryScalarValue) {
  for (char32_t value = 0; value <= 0x10FFFF; ++value) {
    if (value >= 0xD800 && value <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(bytes, value);
    const CodePoint c = code_point_at(bytes, 0);
    ASSERT_EQ(c.value, value);
    ASSERT_EQ(c.length_bytes, bytes.size());
    ASSERT_EQ(utf8_length_from_lead(static_cast<unsigned char>(bytes[0])), bytes.size());
  }
}

TEST(Utf8, BadBytesAreCharactersOfTheirOwn) {
  for (const std::string bytes :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE4\xB8", "\xC3", "\xC3(", "\xE4\xB8("}) {
    const CodePoint c = code_point_at(bytes, 0);
    EXPECT_EQ(c.value, kInvalidByte);
    EXPECT_EQ(c.length_bytes, 1u);
    EXPECT_FALSE(is_utf8("a" + bytes));
  }
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\xA6\x86"));
}

TEST(CharacterClass, FollowsGeneralCategories) {
  using enum CharacterClass;
  const std::vector<std::pair<char32_t, CharacterClass>> expected = {
      {'7', number},         {0xFF12, number},
      {0x2167, number},      {0xBD, number},
      {0x664, number},       {'a', word},
      {0xE9, word},          {0x302, word},
      {0x3005, word},        {0x9FA6, word},
      {0x3400, word},        {0xD55C, word},
      {0x20000, word},       {0x4E00, word},
      {0x9FA5, word},        {0x3040, other},
      {0x30FB, punctuation}, {0x30FF, word},
      {0x303F, punctuation}, {0x3100, other},
      {'~', punctuation},    {'`', punctuation},
      {'$', punctuation},    {'_', punctuation},
      {0x2014, punctuation}, {0x1F642, punctuation},
      {0x20AC, punctuation}, {'\r', newline},
      {'\n', newline},       {' ', space},
      {'\t', space},         {0x0B, space},
      {0x85, space},         {0xA0, space},
      {0x1680, space},       {0x200A, space},
      {0x2028, space},       {0x2029, space},
      {0x202F, space},       {0x205F, space},
      {0x3000, space},       {0x200B, other},
      {0x200D, other},       {0xFEFF, other},
      {0x180E, other},       {0, other},
      {0x7F, other},         {0xE000, other},
      {kInvalidByte, other}, {0x110000, other}};
  for (const auto& [character, kind] : expected) {
    EXPECT_EQ(character_class(character), kind) << "U+" << std::hex << static_cast<uint32_t>(character);
  }
}

TEST(CharacterClass, CjkRanges) {
  for (const char32_t c : {0x4E00, 0x9FA5, 0x3040, 0x309F, 0x30A0, 0x30FB, 0x30FF}) EXPECT_TRUE(is_cjk(c));
  for (const char32_t c : {0x4DFF, 0x9FA6, 0x303F, 0x3100, 0x3005, 0x20000, 0xAC00}) EXPECT_FALSE(is_cjk(c));
}

TEST(Utf8Stream, NeverSplitsACharacter) {
  const std::string text = "aé世🙂\u200dz";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string all;
      for (const std::string& part :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        const std::string shown = stream.push(part);
        for (size_t i = 0; i < shown.size(); i += code_point_at(shown, i).length_bytes) {
          ASSERT_NE(code_point_at(shown, i).value, kInvalidByte) << first << " " << second;
        }
        all += shown;
      }
      EXPECT_EQ(all, text);
      EXPECT_EQ(stream.flush(), "");
    }
  }
}

TEST(Utf8Stream, HoldsBackOnlyWhatMayBeCompleted) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xE4\xB8"), "a");
  EXPECT_EQ(stream.push("\x96"), "世");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.push("x"), "\xF0\x9Fx");
  EXPECT_EQ(stream.push("\xC3\xC3"), "\xC3");
  EXPECT_EQ(stream.push("\xA9"), "é");
  EXPECT_EQ(stream.push("\xFF"), "\xFF");
  EXPECT_EQ(stream.push("\xC0"), "\xC0");
  EXPECT_EQ(stream.push("\x80"), "");
  EXPECT_EQ(stream.push("\x80\x80\x80\x80"), "\x80\x80\x80\x80\x80");
  EXPECT_EQ(stream.push("b\xF0\x9F\x99"), "b");
  EXPECT_EQ(stream.flush(), "\xF0\x9F\x99");
  EXPECT_EQ(stream.flush(), "");
}

}  // namespace
}  // namespace ds4::text
