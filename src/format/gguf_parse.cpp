#include "format/gguf_parse.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/quote.hpp"

namespace ds4::format {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place as little endian");

constexpr uint32_t kMagic = 0x46554747;
constexpr uint32_t kVersion = 3;
constexpr uint32_t kDefaultAlignment = 32;
constexpr uint32_t kMaxDims = 8;

// Smallest encodings: a count above remaining bytes / smallest record cannot be true.
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorInfoBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kStringLengthBytes = 8;

// Ceilings far above any real model. They bound memory also for sparse files, whose size costs an attacker
// nothing.
constexpr uint64_t kMaxKeyValues = 1 << 16;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMaxArrayElements = 1 << 24;

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// Reads forward through the bytes; a read beyond the end yields nothing and leaves the position.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  std::optional<std::span<const std::byte>> take(uint64_t count) {
    if (count > remaining()) return std::nullopt;
    const auto result = bytes_.subspan(position_, count);
    position_ += count;
    return result;
  }

  template <class T>
  std::optional<T> number() {
    const auto bytes = take(sizeof(T));
    if (!bytes) return std::nullopt;
    return load<T>(bytes->data());
  }

  std::optional<std::string_view> string() {
    const uint64_t start = position_;
    const auto length = number<uint64_t>();
    if (!length) return std::nullopt;
    const auto bytes = take(*length);
    if (!bytes) {
      position_ = start;
      return std::nullopt;
    }
    return std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  }

 private:
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

class PartParser {
 public:
  PartParser(std::span<const std::byte> bytes, const std::string& file)
      : bytes_(bytes), cursor_(bytes), file_(file) {}

  Result<GgufPart> parse() {
    DS4_TRY(parse_header());
    DS4_TRY(parse_metadata());
    DS4_TRY(parse_tensor_infos());
    DS4_TRY(place_tensors());
    DS4_TRY(check_overlaps());
    return std::move(part_);
  }

 private:
  Result<void> parse_header() {
    const auto magic = cursor_.number<uint32_t>();
    if (!magic || *magic != kMagic) {
      return fail(ErrorCode::format, "{}: is not a GGUF file (the magic bytes \"GGUF\" are missing)", file_);
    }
    const auto version = cursor_.number<uint32_t>();
    if (!version) return fail(ErrorCode::format, "{}: ends inside the header field version", file_);
    if (*version == 0x03000000) {
      return fail(ErrorCode::unsupported, "{}: the header field version is byte-swapped (a big-endian file)",
                  file_);
    }
    if (*version != kVersion) {
      return fail(ErrorCode::unsupported, "{}: the header field version is {}, only {} is supported", file_,
                  *version, kVersion);
    }
    const auto tensors = cursor_.number<uint64_t>();
    if (!tensors) return fail(ErrorCode::format, "{}: ends inside the header field tensor count", file_);
    const auto key_values = cursor_.number<uint64_t>();
    if (!key_values) return fail(ErrorCode::format, "{}: ends inside the header field metadata count", file_);
    DS4_TRY(check_count("metadata count", *key_values, kMinKeyValueBytes, kMaxKeyValues));
    DS4_TRY(check_count("tensor count", *tensors, kMinTensorInfoBytes, kMaxTensors));
    key_value_count_ = *key_values;
    tensor_count_ = *tensors;
    return {};
  }

  Result<void> check_count(std::string_view field, uint64_t count, uint64_t record_bytes, uint64_t ceiling) {
    if (count > cursor_.remaining() / record_bytes) {
      return fail(ErrorCode::format, "{}: the header field {} is {}, but only {} bytes follow it", file_,
                  field, count, cursor_.remaining());
    }
    if (count > ceiling) {
      return fail(ErrorCode::unsupported, "{}: the header field {} is {}, above the limit of {}", file_,
                  field, count, ceiling);
    }
    return {};
  }

  Result<void> parse_metadata() {
    part_.metadata.reserve(key_value_count_);
    for (uint64_t i = 0; i < key_value_count_; ++i) {
      const auto key = cursor_.string();
      if (!key) {
        return fail(ErrorCode::format, "{}: ends inside the key of metadata record {} of {}", file_, i,
                    key_value_count_);
      }
      if (key->empty())
        return fail(ErrorCode::format, "{}: the key of metadata record {} is empty", file_, i);
      part_.metadata.emplace_back(*key, GgufValue{});
      DS4_TRY(parse_value(*key, part_.metadata.back().second));
    }
    std::vector<std::string_view> keys;
    keys.reserve(part_.metadata.size());
    for (const auto& record : part_.metadata) keys.push_back(record.first);
    NameIndex index;
    if (const size_t repeated = index.build(std::move(keys)); repeated != NameIndex::none) {
      return fail(ErrorCode::format, "{}: key {} appears twice", file_,
                  quote(part_.metadata[repeated].first));
    }
    if (const size_t found = index.find("general.alignment"); found != NameIndex::none) {
      const auto alignment = as_uint(part_.metadata[found].second);
      if (!alignment || *alignment == 0 || *alignment > std::numeric_limits<uint32_t>::max()) {
        return fail(ErrorCode::format,
                    "{}: key \"general.alignment\" must be an integer from 1 to 4294967295", file_);
      }
      alignment_ = *alignment;
    }
    return {};
  }

  Error truncated_value(std::string_view key) const {
    return fail(ErrorCode::format, "{}: ends inside the value of key {}", file_, quote(key));
  }

  Result<GgufType> parse_type(std::string_view key) {
    const auto id = cursor_.number<uint32_t>();
    if (!id) return truncated_value(key);
    if (*id > static_cast<uint32_t>(GgufType::f64)) {
      return fail(ErrorCode::format, "{}: key {} has the unknown value type {}", file_, quote(key), *id);
    }
    return static_cast<GgufType>(*id);
  }

  Result<void> parse_value(std::string_view key, GgufValue& value) {
    DS4_ASSIGN(const GgufType type, parse_type(key));
    value.type = type;
    if (type == GgufType::array) return parse_array(key, value.value.emplace<GgufArray>());
    if (type == GgufType::string) {
      const auto text = cursor_.string();
      if (!text) return truncated_value(key);
      value.value = *text;
      return {};
    }
    const auto bytes = cursor_.take(gguf_scalar_bytes(type));
    if (!bytes) return truncated_value(key);
    if (type == GgufType::boolean && std::to_integer<uint8_t>(bytes->front()) > 1) {
      return fail(ErrorCode::format, "{}: key {} is a bool with the value {}", file_, quote(key),
                  std::to_integer<unsigned>(bytes->front()));
    }
    value = read_gguf_scalar(type, bytes->data());
    return {};
  }

  Result<void> parse_array(std::string_view key, GgufArray& array) {
    DS4_ASSIGN(const GgufType element_type, parse_type(key));
    if (element_type == GgufType::array) {
      return fail(ErrorCode::unsupported, "{}: key {} is an array of arrays, which is not supported", file_,
                  quote(key));
    }
    const auto count = cursor_.number<uint64_t>();
    if (!count) return truncated_value(key);
    const bool strings = element_type == GgufType::string;
    const uint64_t element_bytes = strings ? kStringLengthBytes : gguf_scalar_bytes(element_type);
    if (*count > cursor_.remaining() / element_bytes) {
      return fail(ErrorCode::format, "{}: key {} is an array of {} elements, but only {} bytes follow it",
                  file_, quote(key), *count, cursor_.remaining());
    }
    // Strings cost memory of their own (a view each), so their ceiling holds for all arrays of the file
    // together.
    if (*count > kMaxArrayElements - (strings ? string_elements_ : 0)) {
      return fail(ErrorCode::unsupported, "{}: key {} is an array of {} elements, above the limit of {}",
                  file_, quote(key), *count, kMaxArrayElements);
    }
    array.element_type = element_type;
    array.count = *count;
    if (!strings) {
      array.bytes = *cursor_.take(*count * element_bytes);
      return {};
    }
    string_elements_ += *count;
    array.strings.reserve(*count);
    for (uint64_t i = 0; i < *count; ++i) {
      const auto text = cursor_.string();
      if (!text) {
        return fail(ErrorCode::format, "{}: ends inside element {} of key {}", file_, i, quote(key));
      }
      array.strings.push_back(*text);
    }
    return {};
  }

  Result<void> parse_tensor_infos() {
    part_.tensors.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      const auto name = cursor_.string();
      if (!name) {
        return fail(ErrorCode::format, "{}: ends inside the name of tensor {} of {}", file_, i,
                    tensor_count_);
      }
      if (name->empty()) return fail(ErrorCode::format, "{}: the name of tensor {} is empty", file_, i);
      DS4_TRY(parse_tensor_info(*name));
    }
    return {};
  }

  Result<void> parse_tensor_info(std::string_view name) {
    GgufTensor tensor;
    tensor.name = name;
    const auto truncated = [&] {
      return fail(ErrorCode::format, "{}: ends inside the description of tensor {}", file_, quote(name));
    };
    const auto n_dims = cursor_.number<uint32_t>();
    if (!n_dims) return truncated();
    if (*n_dims == 0 || *n_dims > kMaxDims) {
      return fail(ErrorCode::format, "{}: tensor {} has {} dimensions, allowed are 1 to {}", file_,
                  quote(name), *n_dims, kMaxDims);
    }
    for (uint32_t i = 0; i < *n_dims; ++i) {
      const auto dim = cursor_.number<uint64_t>();
      if (!dim) return truncated();
      if (*dim == 0)
        return fail(ErrorCode::format, "{}: dimension {} of tensor {} is 0", file_, i, quote(name));
      if (i < tensor.dims.size()) {
        tensor.dims[i] = *dim;
      } else if (*dim != 1) {
        return fail(ErrorCode::unsupported, "{}: tensor {} has more than {} dimensions above 1", file_,
                    quote(name), tensor.dims.size());
      }
    }
    tensor.n_dims = std::min<uint32_t>(*n_dims, tensor.dims.size());
    const auto type = cursor_.number<uint32_t>();
    const auto offset = cursor_.number<uint64_t>();
    if (!type || !offset) return truncated();
    tensor.type = static_cast<TensorType>(*type);
    DS4_TRY(set_size(tensor));
    if (*offset % alignment_ != 0) {
      return fail(ErrorCode::format, "{}: the offset {} of tensor {} is not a multiple of the alignment {}",
                  file_, *offset, quote(name), alignment_);
    }
    offsets_.push_back(*offset);
    part_.tensors.push_back(tensor);
    return {};
  }

  Result<void> set_size(GgufTensor& tensor) {
    const auto traits = type_traits(tensor.type);
    if (!traits) {
      return fail(ErrorCode::format, "{}: tensor {} has the unknown type {}", file_, quote(tensor.name),
                  static_cast<uint32_t>(tensor.type));
    }
    if (tensor.dims[0] % traits->block_elements != 0) {
      return fail(ErrorCode::format,
                  "{}: the first dimension {} of tensor {} is not a multiple of {}, the block of {}", file_,
                  tensor.dims[0], quote(tensor.name), traits->block_elements, traits->name);
    }
    auto elements = std::optional<uint64_t>(tensor.dims[0]);
    auto bytes = checked_multiply(tensor.dims[0] / traits->block_elements, traits->block_bytes);
    for (size_t i = 1; i < tensor.dims.size(); ++i) {
      if (elements) elements = checked_multiply(*elements, tensor.dims[i]);
      if (bytes) bytes = checked_multiply(*bytes, tensor.dims[i]);
    }
    if (!elements || !bytes) {
      return fail(ErrorCode::format, "{}: the dimensions of tensor {} multiply to more than 64 bits", file_,
                  quote(tensor.name));
    }
    tensor.size_bytes = *bytes;
    return {};
  }

  Result<void> place_tensors() {
    if (part_.tensors.empty()) return {};
    const auto data_start = checked_round_up(cursor_.position(), alignment_);
    for (size_t i = 0; i < part_.tensors.size(); ++i) {
      GgufTensor& tensor = part_.tensors[i];
      const auto start = data_start ? checked_add(*data_start, offsets_[i]) : std::nullopt;
      const auto end = start ? checked_add(*start, tensor.size_bytes) : std::nullopt;
      if (!end || *end > bytes_.size()) {
        return fail(ErrorCode::format,
                    "{}: tensor {} ({} bytes at offset {}) reaches beyond the end of the file", file_,
                    quote(tensor.name), tensor.size_bytes, offsets_[i]);
      }
      const TypeTraits traits = *type_traits(tensor.type);
      if (*start % traits.alignment != 0) {
        return fail(ErrorCode::format, "{}: tensor {} starts at byte {}, but {} data needs a multiple of {}",
                    file_, quote(tensor.name), *start, traits.name, traits.alignment);
      }
      tensor.data = bytes_.data() + *start;
    }
    return {};
  }

  Result<void> check_overlaps() {
    std::vector<const GgufTensor*> by_offset;
    by_offset.reserve(part_.tensors.size());
    for (const GgufTensor& tensor : part_.tensors) by_offset.push_back(&tensor);
    std::stable_sort(by_offset.begin(), by_offset.end(),
                     [](const GgufTensor* a, const GgufTensor* b) { return a->data < b->data; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
      const GgufTensor& first = *by_offset[i - 1];
      const GgufTensor& second = *by_offset[i];
      const bool alias = first.data == second.data && first.type == second.type && first.dims == second.dims;
      if (second.data < first.data + first.size_bytes && !alias) {
        return fail(ErrorCode::format, "{}: the data of tensor {} overlaps that of tensor {}", file_,
                    quote(second.name), quote(first.name));
      }
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  Cursor cursor_;
  const std::string& file_;
  uint64_t key_value_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  uint64_t string_elements_ = 0;
  std::vector<uint64_t> offsets_;  // relative to the start of the data, one per tensor
  GgufPart part_;
};

}  // namespace

Result<GgufPart> parse_gguf_part(std::span<const std::byte> bytes, const std::string& file) {
  return PartParser(bytes, file).parse();
}

size_t NameIndex::build(std::vector<std::string_view> names) {
  sorted_.clear();
  sorted_.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) sorted_.emplace_back(names[i], i);
  std::sort(sorted_.begin(), sorted_.end());
  const auto repeated = std::adjacent_find(sorted_.begin(), sorted_.end(),
                                           [](const auto& a, const auto& b) { return a.first == b.first; });
  return repeated == sorted_.end() ? none : (repeated + 1)->second;
}

size_t NameIndex::find(std::string_view name) const {
  const auto found =
      std::lower_bound(sorted_.begin(), sorted_.end(), name,
                       [](const auto& entry, std::string_view key) { return entry.first < key; });
  return found == sorted_.end() || found->first != name ? none : found->second;
}

std::optional<uint64_t> as_uint(const GgufValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value.value)) return *number;
  if (const auto* number = std::get_if<int64_t>(&value.value); number && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  return std::nullopt;
}

std::string_view gguf_type_name(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

size_t gguf_scalar_bytes(GgufType type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

GgufValue read_gguf_scalar(GgufType type, const std::byte* bytes) {
  const auto as_unsigned = [&](auto sample) {
    return GgufValue{type, uint64_t{load<decltype(sample)>(bytes)}};
  };
  const auto as_signed = [&](auto sample) { return GgufValue{type, int64_t{load<decltype(sample)>(bytes)}}; };
  switch (type) {
    case GgufType::u8:
      return as_unsigned(uint8_t{});
    case GgufType::u16:
      return as_unsigned(uint16_t{});
    case GgufType::u32:
      return as_unsigned(uint32_t{});
    case GgufType::u64:
      return as_unsigned(uint64_t{});
    case GgufType::i8:
      return as_signed(int8_t{});
    case GgufType::i16:
      return as_signed(int16_t{});
    case GgufType::i32:
      return as_signed(int32_t{});
    case GgufType::i64:
      return as_signed(int64_t{});
    case GgufType::f32:
      return {type, double{load<float>(bytes)}};
    case GgufType::f64:
      return {type, load<double>(bytes)};
    case GgufType::boolean:
      return {type, std::to_integer<uint8_t>(*bytes) != 0};
    case GgufType::string:
    case GgufType::array:
      break;
  }
  return {type, uint64_t{0}};
}

}  // namespace ds4::format
