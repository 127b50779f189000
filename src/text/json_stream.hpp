// Checks and minifies one JSON value while its bytes arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ds4::text {

/// Accepts exactly the well-formed values of RFC 8259, of any depth, with white space around and inside.
class JsonStream {
 public:
  /// Appends the byte to `minified` unless it is white space between tokens. False if no value goes on like
  /// this; the stream is of no use then.
  bool feed(char c, std::string& minified);

  /// What was fed is a whole value.
  bool complete() const;
  /// Nothing but white space was fed.
  bool empty() const { return place_ == Place::value && open_.empty(); }
  bool in_string() const {
    return place_ == Place::string || place_ == Place::escape || place_ == Place::unicode;
  }

 private:
  enum class Place {
    value,            // a value begins
    first_element,    // a value or ]
    first_member,     // a key or }
    member,           // a key
    colon,            // behind a key
    after_value,      // a comma or a closing bracket; the end at the outermost level
    string,           // inside quotes
    escape,           // behind a backslash
    unicode,          // `left_` hexadecimal digits
    literal,          // `rest_` of true, false, null
    minus,            // of a number; a digit follows
    zero,             // whole part 0
    whole,            // digits of the whole part
    point,            // a digit follows
    fraction,         // digits
    exponent,         // a sign or a digit follows
    exponent_sign,    // a digit follows
    exponent_digits,  // digits
  };
  bool begin_value(char c);
  bool in_number(char c, bool& ended);
  bool in_text(char c);
  bool between(char c);
  bool number_may_end() const;

  Place place_ = Place::value;
  bool key_ = false;  // the string is one
  uint8_t left_ = 0;
  std::string_view rest_;
  std::string open_;  // closing brackets to come, innermost last
};

}  // namespace ds4::text
