// Touches everything that a container reader hands out, for fuzzers and hostile-input tests: what has passed
// the checks must be safe to use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "format/gguf.hpp"
#include "format/safetensors.hpp"

namespace ds4::format {

/// Makes the compiler believe that a result is used.
inline void keep(uint64_t value) {
  asm volatile("" : : "r"(value));
}

/// Reads the bytes, so that a sanitizer sees each address; the sum is for keep().
inline uint64_t touch(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (const std::byte b : bytes) sum += std::to_integer<uint64_t>(b);
  return sum;
}

inline uint64_t touch(std::string_view text) {
  return touch(std::as_bytes(std::span(text)));
}

inline uint64_t walk(const GgufFile& file) {
  uint64_t sum = file.file_bytes();
  for (const auto& [key, value] : file.metadata()) {
    sum += touch(key) + (file.find(key) == &value ? 1 : 0);
    if (const auto number = file.get_uint(key)) sum += *number;
    if (const auto number = file.get_float(key)) sum += *number > 0 ? 1 : 0;
    if (const auto flag = file.get_bool(key)) sum += *flag ? 1 : 0;
    if (const auto text = file.get_string(key)) sum += touch(*text);
    if (const auto numbers = file.get_uint_array(key)) sum += numbers->size();
    if (const auto numbers = file.get_float_array(key)) sum += numbers->size();
    if (const auto texts = file.get_string_array(key)) {
      for (const std::string_view text : *texts) sum += touch(text);
    }
  }
  for (const GgufTensor& tensor : file.tensors()) {
    sum += touch(tensor.name) + touch({tensor.data, tensor.size_bytes}) + tensor.elements();
    sum += file.find_tensor(tensor.name) == &tensor ? 1 : 0;
  }
  return sum;
}

inline uint64_t walk(const SafetensorsCheckpoint& checkpoint) {
  uint64_t sum = 0;
  for (const SafetensorsEntry& entry : checkpoint.tensors()) {
    sum += touch(entry.name) + touch(entry.bytes) + entry.elements();
    sum += checkpoint.find(entry.name) == &entry ? 1 : 0;
  }
  return sum;
}

}  // namespace ds4::format
