// libFuzzer: any bytes as an importance file; what can be read is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "format/imatrix.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::format;
  const auto imatrix = parse_imatrix(std::as_bytes(std::span(data, size)), "fuzz");
  if (!imatrix) {
    if (!imatrix.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  const auto bytes = serialize_imatrix(*imatrix);
  if (!bytes) std::abort();
  const auto again = parse_imatrix(std::as_bytes(std::span(*bytes)), "again");
  if (!again || again->entries != imatrix->entries || again->dataset != imatrix->dataset) std::abort();
  for (const auto& [name, values] : imatrix->entries) {
    if (const auto found = imatrix->find(name, values.size(), 0, 1); !found || found->size() != values.size())
      std::abort();
  }
  return 0;
}
