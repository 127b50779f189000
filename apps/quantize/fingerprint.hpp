// Short names for what a file was made from, and the checksum of a finished file.
#pragma once

#include <span>
#include <string>

#include "ds4/error.hpp"
#include "format/imatrix.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {

/// XXH3-128 over names, types, sizes and the first bytes of every source, in hexadecimal. Reads a page of
/// each, not the whole source: it tells checkpoints apart, and does not prove that they are undamaged.
std::string source_fingerprint(std::span<const MappedTensor> tensors);

/// XXH3-128 over names and values.
std::string imatrix_fingerprint(const format::Imatrix& imatrix);

/// SHA-256 of a file, in hexadecimal.
Result<std::string> file_sha256(const std::string& path);

}  // namespace ds4::quantize
