// A body in chunks (Transfer-Encoding: chunked), byte by byte, so that cuts cannot matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ds4::server::http {

/// Accepts what RFC 9112 allows; skips chunk extensions and trailers, which nothing here uses.
class ChunkReader {
 public:
  enum class State { more, complete, malformed, too_large };

  explicit ChunkReader(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  /// Takes bytes from the front, appends what is body to `body`, and says how many were taken: all of them,
  /// unless the body ends before or is refused.
  size_t consume(std::string_view bytes, std::string& body);

  State state() const { return state_; }

 private:
  enum class At { size, before_extension, extension, size_lf, data, data_cr, data_lf, trailer, trailer_lf };
  State step(char c);
  State size_digit(char c);
  State trailer_byte(char c);
  State end_of_line(char c, At next);

  const size_t max_body_bytes_;
  State state_ = State::more;
  At at_ = At::size;
  size_t digits_ = 0;
  uint64_t chunk_bytes_ = 0;   // of the current chunk, still to come
  size_t body_bytes_ = 0;      // with all of the current chunk
  size_t overhead_bytes_ = 0;  // of the current size line, or of all trailers
  size_t line_bytes_ = 0;      // of the current trailer
  bool line_has_colon_ = false;
};

}  // namespace ds4::server::http
