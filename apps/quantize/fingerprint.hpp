// Short names for what a file was made from, and the checksum of a finished file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ds4/error.hpp"
#include "format/imatrix.hpp"
#include "tensor_map.hpp"

struct XXH3_state_s;

namespace ds4::quantize {

/// XXH3-128 of what is added.
class ContentHash {
 public:
  ContentHash();
  void add(const void* bytes, size_t count);
  void add(uint64_t number) { add(&number, sizeof number); }
  /// Also its length, so that the borders of texts count.
  void add(std::string_view text);
  /// 32 hexadecimal digits.
  std::string hexadecimal() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// XXH3-128 over names, types, sizes and the first bytes of every source, in hexadecimal. Reads a page of
/// each, not the whole source: it tells checkpoints apart, and does not prove that they are undamaged.
std::string source_fingerprint(std::span<const MappedTensor> tensors);

/// XXH3-128 over names and values.
std::string imatrix_fingerprint(const format::Imatrix& imatrix);

/// SHA-256 of a file, in hexadecimal.
Result<std::string> file_sha256(const std::string& path);

}  // namespace ds4::quantize
