#include "text/json_stream.hpp"

namespace ds4::text {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

}  // namespace

bool JsonStream::number_may_end() const {
  return place_ == Place::zero || place_ == Place::whole || place_ == Place::fraction ||
         place_ == Place::exponent_digits;
}

bool JsonStream::complete() const {
  return open_.empty() && (place_ == Place::after_value || number_may_end());
}

bool JsonStream::begin_value(char c) {
  if (c == '{' || c == '[') {
    open_.push_back(c == '{' ? '}' : ']');
    place_ = c == '{' ? Place::first_member : Place::first_element;
    return true;
  }
  if (c == '"') {
    place_ = Place::string;
    key_ = false;
    return true;
  }
  if (c == '-' || is_digit(c)) {
    place_ = c == '-' ? Place::minus : c == '0' ? Place::zero : Place::whole;
    return true;
  }
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (literal.front() != c) continue;
    place_ = Place::literal;
    rest_ = literal.substr(1);
    return true;
  }
  return false;
}

/// `ended`: the number was complete before this byte, which is still to be read.
bool JsonStream::in_number(char c, bool& ended) {
  const bool digit = is_digit(c);
  const bool exponent = c == 'e' || c == 'E';
  switch (place_) {
    case Place::minus:
      place_ = c == '0' ? Place::zero : Place::whole;
      return digit;
    case Place::point:
      place_ = Place::fraction;
      return digit;
    case Place::exponent:
      place_ = digit ? Place::exponent_digits : Place::exponent_sign;
      return digit || c == '+' || c == '-';
    case Place::exponent_sign:
      place_ = Place::exponent_digits;
      return digit;
    default:
      break;
  }
  if (digit && place_ != Place::zero) return true;
  if (exponent && place_ != Place::exponent_digits) {
    place_ = Place::exponent;
  } else if (c == '.' && (place_ == Place::zero || place_ == Place::whole)) {
    place_ = Place::point;
  } else {
    place_ = Place::after_value;
    ended = true;
  }
  return true;
}

bool JsonStream::in_text(char c) {
  switch (place_) {
    case Place::string:
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '\\') place_ = Place::escape;
      if (c == '"') place_ = key_ ? Place::colon : Place::after_value;
      return true;
    case Place::escape:
      place_ = c == 'u' ? Place::unicode : Place::string;
      left_ = 4;
      return std::string_view("\"\\/bfnrtu").find(c) != std::string_view::npos;
    case Place::unicode:
      if (--left_ == 0) place_ = Place::string;
      return is_hex_digit(c);
    default:  // literal
      if (c != rest_.front()) return false;
      rest_.remove_prefix(1);
      if (rest_.empty()) place_ = Place::after_value;
      return true;
  }
}

bool JsonStream::between(char c) {
  const bool closes = !open_.empty() && c == open_.back();
  switch (place_) {
    case Place::value:
      return begin_value(c);
    case Place::colon:
      place_ = Place::value;
      return c == ':';
    case Place::first_element:
    case Place::first_member:
    case Place::after_value:
      if (closes) {
        open_.pop_back();
        place_ = Place::after_value;
        return true;
      }
      if (place_ == Place::first_element) return begin_value(c);
      if (place_ == Place::after_value) {
        if (open_.empty() || c != ',') return false;
        place_ = open_.back() == '}' ? Place::member : Place::value;
        return true;
      }
      [[fallthrough]];
    default:  // member
      place_ = Place::string;
      key_ = true;
      return c == '"';
  }
}

bool JsonStream::feed(char c, std::string& minified) {
  bool well_formed = false;
  if (in_string() || place_ == Place::literal) {
    well_formed = in_text(c);
  } else {
    bool ended = place_ < Place::minus;
    well_formed = ended || in_number(c, ended);
    if (ended) {
      if (is_space(c)) return true;
      well_formed = between(c);
    }
  }
  if (well_formed) minified.push_back(c);
  return well_formed;
}

}  // namespace ds4::text
