// libFuzzer: any bytes as a safetensors shard and as an index. Seeds: tests/fuzz/corpus/safetensors.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "format/container_bytes.hpp"
#include "format/container_walk.hpp"
#include "format/safetensors.hpp"
#include "format/safetensors_header.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::format;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const AlignedBytes bytes(text);
  if (const auto file = SafetensorsCheckpoint::parse(bytes.span(), "fuzz")) {
    keep(walk(*file));
  } else if (!file.error().message.starts_with("fuzz: ")) {
    std::abort();
  }
  if (const auto index = parse_safetensors_index(text, "fuzz")) {
    for (const auto& [tensor, shard] : *index) keep(touch(tensor) + touch(shard));
  } else if (!index.error().message.starts_with("fuzz: ")) {
    std::abort();
  }
  return 0;
}
