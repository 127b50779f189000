// libFuzzer: any bytes as what a client sends over one connection, read at once and in pieces. The first byte
// says how large the pieces are. Seeds: tests/fuzz/corpus/request_reader.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/request_reader.hpp"

namespace {

using ds4::server::http::RequestReader;
using State = RequestReader::State;

void check(bool holds) {
  if (!holds) std::abort();
}

/// Everything that was understood, as one text.
std::string read(std::string_view bytes, size_t piece) {
  const ds4::server::http::RequestLimits limits{
      .max_header_bytes = 2048, .max_target_bytes = 256, .max_body_bytes = 4096};
  std::string result, pending;
  while (true) {
    RequestReader reader(limits);
    bool stuck = false;
    while (reader.state() != State::complete && reader.state() != State::refused && !stuck) {
      const size_t size = pending.size();
      pending += bytes.substr(0, piece);
      bytes.remove_prefix(std::min(piece, bytes.size()));
      const State before = reader.state();
      const size_t taken = reader.consume(pending);
      check(taken <= pending.size());
      stuck = taken == 0 && size == pending.size() && before == reader.state();
      pending.erase(0, taken);
      check(reader.incoming().request.body.size() <= limits.max_body_bytes);
    }
    if (stuck) return result + "|incomplete";
    if (reader.state() == State::refused) return result + "|" + std::to_string(reader.refusal().status);
    const ds4::server::http::Request& request = reader.incoming().request;
    check(!request.path.empty());
    result += "|" + request.method + " " + request.path + " " + request.query + " " + request.body;
    for (const auto& [name, value] : request.headers) {
      check(!name.empty() && value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
      result += name + value;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t piece = data[0] % 64 + 1;
  check(read(bytes, bytes.size() + 1) == read(bytes, piece));
  return 0;
}
