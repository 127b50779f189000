#include "common/visible_text.hpp"

#include <gtest/gtest.h>

namespace ds4::cli {
namespace {

TEST(Visible, ControlCharactersAndBytesThatAreNotUtf8) {
  EXPECT_EQ(visible("a\x1b[m\xff"), "a^[[m\xef\xbf\xbd");
  EXPECT_EQ(visible(std::string_view("\0\a\n\r\x7f", 5)), "^@^G^J^M^?");
  EXPECT_EQ(visible("\u0080\u009b\u009f"), "^?^?^?");  // terminals take U+009B for ESC [
  EXPECT_EQ(visible("\x9b"
                    "1m"),
            "\xef\xbf\xbd"
            "1m");  // and some the bare byte
}

TEST(Visible, TextStaysAsItIs) {
  const std::string text = "e\u0301 \u4e2d \U0001F600 \u00a0";
  EXPECT_EQ(visible(text), text);
}

TEST(Visible, KeepsWhatIsAskedFor) {
  EXPECT_EQ(visible("a\tb\r\n\x1b", "\n\t"), "a\tb^M\n^[");
}

}  // namespace
}  // namespace ds4::cli
