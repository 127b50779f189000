// libFuzzer: any bytes as a GGUF file. Seeds: tests/fuzz/corpus/gguf.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "format/container_bytes.hpp"
#include "format/container_walk.hpp"
#include "format/gguf.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::format;
  const AlignedBytes bytes(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto file = GgufFile::parse(bytes.span(), "fuzz");
  if (!file) {
    if (!file.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  keep(walk(*file));
  return 0;
}
