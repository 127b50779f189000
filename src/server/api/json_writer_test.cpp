#include "server/api/json_writer.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ds4::server::api {
namespace {

TEST(JsonWriter, SeparatesWhatMustBe) {
  JsonWriter json;
  json.begin_object().member("a", 1).key("b").begin_array().string("x").integer(-2).null().end_array();
  json.key("c")
      .begin_object()
      .end_object()
      .member("d", true)
      .member("e", "text")
      .key("f")
      .raw("{ }")
      .end_object();
  EXPECT_EQ(json.take(), R"({"a":1,"b":["x",-2,null],"c":{},"d":true,"e":"text","f":{ }})");
}

TEST(JsonWriter, EscapesStrings) {
  std::string out;
  append_json_string(out, std::string_view("\"\\\n\r\t\b\0/\x7f\xc3\xa9\xf0\x9f\x98\x80", 15));
  EXPECT_EQ(out, "\"\\\"\\\\\\n\\r\\t\\u0008\\u0000/\x7f\xc3\xa9\xf0\x9f\x98\x80\"");
  out.clear();
  append_json_string(out, "a\xff\xc3(\xed\xa0\x80");
  EXPECT_EQ(out, "\"a\xEF\xBF\xBD\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

// Some clients split streams at all that Unicode calls the end of a line.
TEST(JsonWriter, EscapesLineEnds) {
  std::string out;
  append_json_string(out,
                     "a\xc2\x85"
                     "b\xe2\x80\xa8"
                     "c\xe2\x80\xa9"
                     "d\xe2\x80\xaa");
  EXPECT_EQ(out, "\"a\\u0085b\\u2028c\\u2029d\xe2\x80\xaa\"");
}

TEST(JsonWriter, NumbersAreAlwaysJson) {
  JsonWriter json;
  const float infinity = std::numeric_limits<float>::infinity();
  json.begin_array().number(-0.25F).number(1e-10F).number(-infinity);
  json.number(std::numeric_limits<float>::quiet_NaN())
      .integer(std::numeric_limits<uint64_t>::max())
      .end_array();
  EXPECT_EQ(json.text(), "[-0.25,1e-10,-3.4028235e+38,null,18446744073709551615]");
}

}  // namespace
}  // namespace ds4::server::api
