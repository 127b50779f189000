// libFuzzer: any bytes as a file of the disk store, and as a reply that one holds. The first byte chooses
// which. Checksums are made good, so that what is behind them is reached. Seeds:
// tests/fuzz/corpus/store_header.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "store/reply_codec.hpp"
#include "store/store_format.hpp"

namespace {

using namespace ds4::store;

/// A header that is taken gives the same bytes when it is written again.
template <class Parse>
void check_file(FileKind kind, std::span<const std::byte> file, const Parse& parse) {
  if (file.size() < preamble_bytes) return;
  const auto told = parse_preamble(kind, file.first(preamble_bytes), file.size());
  if (!told) return;
  if (*told > file.size() || *told < preamble_bytes + sizeof(Hash128)) std::abort();
  std::vector<std::byte> header(file.begin(), file.begin() + static_cast<ptrdiff_t>(*told));
  const Hash128 hash = hash_of(std::span(header).first(header.size() - sizeof(Hash128)));
  std::memcpy(header.data() + header.size() - sizeof(Hash128), hash.bytes.data(), sizeof(Hash128));
  const auto read = parse(header, file.size());
  if (!read) return;
  if (read->file_bytes() != file.size() || read->header_bytes() != header.size()) std::abort();
  const auto again = encode(*read);
  const auto reread = parse(again, file.size());
  if (!reread || reread->name() != read->name()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 4) {
    case 0:
      check_file(FileKind::segment, bytes, parse_segment);
      break;
    case 1:
      check_file(FileKind::frontier, bytes, parse_frontier);
      break;
    case 2:
      check_file(FileKind::reply, bytes, parse_reply);
      break;
    default:
      if (const auto reply = parse_sampled_reply(bytes)) {
        const auto again = serialize_sampled_reply(*reply);
        if (again.size() != bytes.size() || std::memcmp(again.data(), bytes.data(), bytes.size()) != 0)
          std::abort();
      }
  }
  return 0;
}
