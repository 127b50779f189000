#include "server/http/chunk_reader.hpp"

#include <algorithm>

namespace ds4::server::http {

namespace {

constexpr size_t max_digits = 16;               // of a size, with leading zeros
constexpr size_t max_overhead_bytes = 8 << 10;  // a size line with extensions, or the trailers

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
bool is_text(char c) {
  return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

}  // namespace

size_t ChunkReader::consume(std::string_view bytes, std::string& body) {
  size_t taken = 0;
  while (taken < bytes.size() && state_ == State::more) {
    if (at_ == At::data) {
      const size_t size = static_cast<size_t>(std::min<uint64_t>(chunk_bytes_, bytes.size() - taken));
      body.append(bytes.substr(taken, size));
      taken += size;
      chunk_bytes_ -= size;
      if (chunk_bytes_ == 0) at_ = At::data_cr;
    } else {
      state_ = step(bytes[taken++]);
    }
  }
  return taken;
}

ChunkReader::State ChunkReader::step(char c) {
  if (at_ != At::data_cr && at_ != At::data_lf && ++overhead_bytes_ > max_overhead_bytes)
    return State::malformed;
  switch (at_) {
    case At::size:
      return size_digit(c);
    case At::before_extension:
    case At::extension:
      if (c == ';') {
        at_ = At::extension;
      } else if (c == '\r' && at_ == At::extension) {
        at_ = At::size_lf;
      } else if (at_ == At::before_extension ? !is_blank(c) : !is_text(c)) {
        return State::malformed;
      }
      return State::more;
    case At::size_lf:
      overhead_bytes_ = digits_ = 0;
      return end_of_line(c, chunk_bytes_ > 0 ? At::data : At::trailer);
    case At::data:
      return State::malformed;
    case At::data_cr:
      at_ = At::data_lf;
      return c == '\r' ? State::more : State::malformed;
    case At::data_lf:
      return end_of_line(c, At::size);
    case At::trailer:
      return trailer_byte(c);
    case At::trailer_lf: {
      const bool last = line_bytes_ == 0;
      if (!last && !line_has_colon_) return State::malformed;
      line_bytes_ = 0;
      line_has_colon_ = false;
      const State state = end_of_line(c, At::trailer);
      return state == State::more && last ? State::complete : state;
    }
  }
  return State::malformed;
}

ChunkReader::State ChunkReader::size_digit(char c) {
  const int value = hex_value(c);
  if (value >= 0) {
    if (++digits_ > max_digits) return State::malformed;
    if (digits_ == 1) chunk_bytes_ = 0;
    chunk_bytes_ = chunk_bytes_ * 16 + static_cast<uint64_t>(value);
    return State::more;
  }
  if (digits_ == 0) return State::malformed;
  if (chunk_bytes_ > max_body_bytes_ - body_bytes_) return State::too_large;
  body_bytes_ += static_cast<size_t>(chunk_bytes_);
  if (c == '\r') {
    at_ = At::size_lf;
  } else if (c == ';') {
    at_ = At::extension;
  } else if (is_blank(c)) {
    at_ = At::before_extension;
  } else {
    return State::malformed;
  }
  return State::more;
}

ChunkReader::State ChunkReader::trailer_byte(char c) {
  if (c == '\r') {
    at_ = At::trailer_lf;
    return State::more;
  }
  if (!is_text(c) || (line_bytes_ == 0 && (is_blank(c) || c == ':'))) return State::malformed;
  ++line_bytes_;
  line_has_colon_ = line_has_colon_ || c == ':';
  return State::more;
}

ChunkReader::State ChunkReader::end_of_line(char c, At next) {
  at_ = next;
  return c == '\n' ? State::more : State::malformed;
}

}  // namespace ds4::server::http
