// Importance files: mean squares of what each column of a matrix was multiplied with, by tensor name
// (docs/formats.md §10).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "format/gguf.hpp"

namespace ds4::format {

/// Vectors by tensor name. A tensor of experts has one vector for each of them, one after the other.
struct Imatrix {
  std::map<std::string, std::vector<float>, std::less<>> entries;
  std::optional<std::string> dataset;  // what the numbers were collected from
  std::optional<uint32_t> chunks;      // batches that were collected

  /// The vector of one matrix with `columns` columns: the entry `name`.expert.E, `name`.expert_E or slice E
  /// of `experts` in the entry `name`, for an expert; the entry `name` itself where it has one vector only.
  /// Empty if there is none; an error for an entry of another length.
  Result<std::span<const float>> find(std::string_view name, uint64_t columns, uint64_t expert,
                                      uint64_t experts) const;
};

/// What the names of importance vectors inside a GGUF file begin with; the entry's name follows.
inline constexpr std::string_view imatrix_tensor_prefix = "imatrix.";

/// The vectors inside a GGUF file; not_found if there are none, format if one is not F32, or has a number
/// that is negative or not finite.
Result<Imatrix> embedded_imatrix(const GgufFile& file);

/// An importance file, or the vectors inside a GGUF file. Counts and lengths are checked against the file;
/// every number must be finite and not negative, every name be there once.
Result<Imatrix> read_imatrix(const std::string& path);
Result<Imatrix> parse_imatrix(std::span<const std::byte> bytes, const std::string& path);

/// The bytes of a file with `imatrix`: for each layer gate, up and down of its experts, then other entries by
/// name.
Result<std::string> serialize_imatrix(const Imatrix& imatrix);

}  // namespace ds4::format
