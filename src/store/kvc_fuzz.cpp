// libFuzzer: any bytes as a KVC file. An input is where to put how many zeros (u32, u64), and the bytes
// around them: payloads are large, and zeros are good enough rows. States that can be read are written and
// read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "store/kvc_file.hpp"
#include "store/test_byte_access.hpp"

namespace {

using namespace ds4;
using namespace ds4::store;

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::byte> state_bytes(const PayloadReader& reader) {
  std::vector<std::byte> bytes(reader.blocks() * reader.block_bytes() + reader.frontier_bytes());
  const std::span<std::byte> out(bytes);
  for (size_t b = 0; b < reader.blocks(); ++b) {
    if (!reader.export_block(b, out.subspan(b * reader.block_bytes(), reader.block_bytes()))) return {};
  }
  if (!reader.export_frontier(out.last(reader.frontier_bytes()))) return {};
  return bytes;
}

MemoryBytes written(const PayloadReader& reader, const StateLayout& layout,
                    std::span<const std::byte> state) {
  MemoryBytes bytes;
  require(!state.empty());
  const size_t block_bytes = reader.block_bytes();
  auto writer = PayloadWriter::begin(bytes, 0, layout, reader.tokens(),
                                     payload_header(static_cast<uint32_t>(reader.tokens().size())));
  require(writer.has_value());
  for (size_t b = 0; b < reader.blocks(); ++b)
    require(writer->add_block(state.subspan(b * block_bytes, block_bytes)).has_value());
  require(writer->finish(state.last(reader.frontier_bytes())).has_value());
  return bytes;
}

void check_payload(const ByteSource& source, uint64_t offset, uint64_t bytes) {
  const StateLayout layout({0, 4}, 64, 8, false);
  const auto reader = PayloadReader::open(source, offset, bytes, layout, {2048}, "fuzz");
  if (!reader) return require(reader.error().message.starts_with("fuzz: "));
  const std::vector<std::byte> state = state_bytes(*reader);
  if (state.empty()) return;

  // Rows that were not rounded may change once: a scale has two spellings where half of it is enough.
  const MemoryBytes copy = written(*reader, layout, state);
  const auto again = PayloadReader::open(copy, 0, copy.size(), layout, {}, "copy");
  require(again && again->tokens() == reader->tokens());
  require(written(*again, layout, state_bytes(*again)).bytes == copy.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint32_t hole_at = 0;
  uint64_t hole = 0;
  if (size < sizeof hole_at + sizeof hole) return 0;
  std::memcpy(&hole_at, data, sizeof hole_at);
  std::memcpy(&hole, data + sizeof hole_at, sizeof hole);
  const auto* content = reinterpret_cast<const std::byte*>(data) + sizeof hole_at + sizeof hole;
  const auto* end = reinterpret_cast<const std::byte*>(data) + size;
  hole = std::min(hole, uint64_t{1} << 62);  // no file is longer
  const SparseBytes source({content, end}, hole_at, hole);

  const auto file = KvcFile::open(std::make_unique<SparseBytes>(source), "fuzz");
  if (!file) {
    require(file.error().message.starts_with("fuzz: "));
    return 0;
  }
  const auto text = file->text();
  require(!text || text->size() == file->header().text_bytes);
  const auto tools = file->tools();
  require(tools.has_value() && (tools->damage.empty() || tools->damage.starts_with("fuzz: ")));
  check_payload(source, kvc_header_bytes + uint64_t{file->header().text_bytes}, file->header().payload_bytes);
  return 0;
}
