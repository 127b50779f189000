#include "format/gguf_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/quote.hpp"

namespace ds4::format {
namespace {

constexpr uint32_t kDefaultAlignment = 32;
constexpr size_t kBufferBytes = 1 << 20;
constexpr size_t kMaxDims = 4;
constexpr std::string_view kAlignmentKey = "general.alignment";

template <class T>
void append(std::string& out, T value) {
  static_assert(std::is_arithmetic_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

void append_string(std::string& out, std::string_view text) {
  append<uint64_t>(out, text.size());
  out.append(text);
}

void append_type(std::string& out, GgufType type) {
  append(out, static_cast<uint32_t>(type));
}

/// A scalar in the width its type has in the file.
void append_scalar(std::string& out, const GgufValue& value) {
  const auto* unsigned_value = std::get_if<uint64_t>(&value.value);
  const auto* signed_value = std::get_if<int64_t>(&value.value);
  const auto* float_value = std::get_if<double>(&value.value);
  const auto* flag = std::get_if<bool>(&value.value);
  const uint64_t bits = unsigned_value != nullptr ? *unsigned_value
                        : signed_value != nullptr ? static_cast<uint64_t>(*signed_value)
                        : flag != nullptr         ? uint64_t{*flag}
                                                  : 0;
  const double number = float_value != nullptr ? *float_value : 0;
  switch (value.type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return append(out, static_cast<uint8_t>(bits));
    case GgufType::u16:
    case GgufType::i16:
      return append(out, static_cast<uint16_t>(bits));
    case GgufType::u32:
    case GgufType::i32:
      return append(out, static_cast<uint32_t>(bits));
    case GgufType::u64:
    case GgufType::i64:
      return append(out, bits);
    case GgufType::f32:
      return append(out, static_cast<float>(number));
    case GgufType::f64:
      return append(out, number);
    case GgufType::string:
    case GgufType::array:
      return;
  }
}

struct PlannedTensor {
  std::string name;
  uint64_t size_bytes = 0;
  uint64_t written_bytes = 0;
};

}  // namespace

struct GgufWriter::Impl {
  std::string path;
  std::string temporary_path;
  uint32_t alignment = kDefaultAlignment;
  std::optional<Error> mistake;  // the first one of add_*, or a failed write; ends all further work

  std::string metadata;
  uint64_t metadata_count = 0;
  std::unordered_set<std::string> keys;
  std::string tensor_infos;
  std::unordered_set<std::string> names;
  std::vector<PlannedTensor> tensors;
  uint64_t data_bytes = 0;  // padded size of the tensors so far

  int file = -1;
  std::string buffer;
  uint64_t position = 0;  // in the file, including what is still in the buffer
  size_t current = 0;     // tensor that the next bytes belong to
  bool finished = false;
  bool keeps_partial = false;
  bool discards_part = false;

  ~Impl() {
    if (file >= 0) {
      // Whatever cannot be written now is encoded again later.
      if (keeps_partial && !mistake) static_cast<void>(flush());
      // Still under the lock: afterwards the name may be that of another writer's file.
      if (!keeps_partial) ::unlink(temporary_path.c_str());
      ::close(file);
    }
  }

  void note(Error error) {
    if (!mistake) mistake = std::move(error);
  }

  /// True when a record with this key may be added.
  bool begin_key(std::string_view key) {
    if (file >= 0 || finished) {
      note(fail(ErrorCode::invalid_argument, "{}: key {} was added after tensor data", path, quote(key)));
    } else if (key.empty()) {
      note(fail(ErrorCode::invalid_argument, "{}: a key is empty", path));
    } else if (key == kAlignmentKey) {
      note(fail(ErrorCode::invalid_argument, "{}: key {} is set by the writer itself", path, quote(key)));
    } else if (!keys.emplace(key).second) {
      note(fail(ErrorCode::invalid_argument, "{}: key {} was added twice", path, quote(key)));
    } else {
      append_string(metadata, key);
      ++metadata_count;
      return true;
    }
    return false;
  }

  void begin_array(GgufType element_type, size_t count) {
    append_type(metadata, GgufType::array);
    append_type(metadata, element_type);
    append<uint64_t>(metadata, count);
  }

  template <class T>
  void add_scalar(std::string_view key, GgufType type, T value) {
    if (!begin_key(key)) return;
    append_type(metadata, type);
    append(metadata, value);
  }

  template <class T>
  void add_array(std::string_view key, GgufType type, std::span<const T> values) {
    if (!begin_key(key)) return;
    begin_array(type, values.size());
    metadata.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }

  template <class Text>
  void add_strings(std::string_view key, std::span<const Text> values) {
    if (!begin_key(key)) return;
    begin_array(GgufType::string, values.size());
    for (const Text& value : values) append_string(metadata, value);
  }

  /// Bytes of a tensor, or why these dims cannot be written.
  Result<uint64_t> tensor_bytes(std::string_view name, TensorType type,
                                std::span<const uint64_t> dims) const {
    const auto traits = type_traits(type);
    if (!traits) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} has the unknown type {}", path, quote(name),
                  static_cast<uint32_t>(type));
    }
    if (dims.empty() || dims.size() > kMaxDims) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} has {} dimensions, allowed are 1 to {}", path,
                  quote(name), dims.size(), kMaxDims);
    }
    if (alignment % traits->alignment != 0) {
      return fail(ErrorCode::invalid_argument,
                  "{}: tensor {} of type {} needs an alignment that {} divides, not {}", path, quote(name),
                  traits->name, traits->alignment, alignment);
    }
    if (dims[0] % traits->block_elements != 0) {
      return fail(ErrorCode::invalid_argument,
                  "{}: the first dimension {} of tensor {} is not a multiple of {}, the block of {}", path,
                  dims[0], quote(name), traits->block_elements, traits->name);
    }
    auto bytes = checked_multiply(dims[0] / traits->block_elements, traits->block_bytes);
    auto elements = std::optional<uint64_t>(1);
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == 0) {
        return fail(ErrorCode::invalid_argument, "{}: dimension {} of tensor {} is 0", path, i, quote(name));
      }
      if (elements) elements = checked_multiply(*elements, dims[i]);
      if (bytes && i > 0) bytes = checked_multiply(*bytes, dims[i]);
    }
    if (!bytes || !elements) {
      return fail(ErrorCode::invalid_argument,
                  "{}: the dimensions of tensor {} multiply to more than 64 bits", path, quote(name));
    }
    return *bytes;
  }

  Result<void> add_tensor(std::string_view name, TensorType type, std::span<const uint64_t> dims) {
    if (file >= 0 || finished) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} was added after tensor data", path,
                  quote(name));
    }
    if (name.empty()) return fail(ErrorCode::invalid_argument, "{}: the name of a tensor is empty", path);
    if (!names.emplace(name).second) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} was added twice", path, quote(name));
    }
    DS4_ASSIGN(const uint64_t bytes, tensor_bytes(name, type, dims));
    const auto end = checked_add(data_bytes, bytes);
    const auto padded_end = end ? checked_round_up(*end, alignment) : std::nullopt;
    if (!padded_end) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} makes the file larger than 64 bits can say",
                  path, quote(name));
    }
    append_string(tensor_infos, name);
    append(tensor_infos, static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) append(tensor_infos, dim);
    append(tensor_infos, static_cast<uint32_t>(type));
    append(tensor_infos, data_bytes);
    tensors.push_back({std::string(name), bytes, 0});
    data_bytes = *padded_end;
    return {};
  }

  Error system_error(std::string_view action) const {
    const int error_number = errno;
    return fail(ErrorCode::io, "{}: cannot be {}: {}", temporary_path, action,
                std::generic_category().message(error_number));
  }

  Result<void> write_out(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        // Bytes are lost: nothing that follows may turn this into a finished file.
        mistake = system_error("written");
        return *mistake;
      }
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }

  Result<void> flush() {
    DS4_TRY(write_out(std::as_bytes(std::span(buffer))));
    buffer.clear();
    return {};
  }

  Result<void> put(std::span<const std::byte> bytes) {
    position += bytes.size();
    if (buffer.size() + bytes.size() > kBufferBytes) DS4_TRY(flush());
    if (bytes.size() > kBufferBytes) return write_out(bytes);
    buffer.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }

  Result<void> pad() {
    uint64_t missing = (alignment - position % alignment) % alignment;
    static constexpr std::byte kZeros[4096] = {};
    while (missing > 0) {
      const uint64_t step = std::min<uint64_t>(missing, sizeof(kZeros));
      DS4_TRY(put(std::span(kZeros, step)));
      missing -= step;
    }
    return {};
  }

  /// Magic, version and two counts.
  static constexpr uint64_t kFixedBytes = 24;
  /// A key of a u32 besides the key itself: its length, the type, the value.
  static constexpr uint64_t kAlignmentBytes = 8 + kAlignmentKey.size() + 4 + 4;

  Result<uint64_t> planned_bytes() const {
    if (mistake) return *mistake;
    uint64_t bytes = kFixedBytes + metadata.size() + tensor_infos.size();
    if (alignment != kDefaultAlignment) bytes += kAlignmentBytes;
    const auto header = checked_round_up(bytes, alignment);
    const auto total = header ? checked_add(*header, data_bytes) : std::nullopt;
    if (!total) return fail(ErrorCode::invalid_argument, "{}: the size exceeds 64 bits", path);
    return *total;
  }

  /// Everything before the tensor data, padding included.
  std::string header_bytes() const {
    std::string header = "GGUF";
    append<uint32_t>(header, 3);
    append<uint64_t>(header, tensors.size());
    append<uint64_t>(header, metadata_count + (alignment != kDefaultAlignment ? 1 : 0));
    header += metadata;
    if (alignment != kDefaultAlignment) {
      append_string(header, kAlignmentKey);
      append_type(header, GgufType::u32);
      append(header, alignment);
    }
    header += tensor_infos;
    header.resize((header.size() + alignment - 1) / alignment * alignment, '\0');
    return header;
  }

  /// Opens the file and writes everything before the tensor data, on the first call only.
  Result<void> begin() {
    if (mistake) return *mistake;
    if (finished) return fail(ErrorCode::invalid_argument, "{}: is already finished", path);
    if (file >= 0) return {};
    DS4_ASSIGN(const uint64_t there, open_locked());
    if (there > 0 && !discards_part) {
      release();
      return fail(ErrorCode::invalid_argument,
                  "{}: another run left this; it is kept, and nothing is written", temporary_path);
    }
    if (::ftruncate(file, 0) != 0) return system_error("cut");
    const std::string header = header_bytes();
    return put(std::as_bytes(std::span(header)));
  }

  /// Gives the file up as it is.
  void release() {
    ::close(file);
    file = -1;
  }

  /// Opens the temporary file, which nobody else writes while it is open. Returns its size.
  Result<uint64_t> open_locked() {
    for (;;) {
      file = ::open(temporary_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
      if (file < 0) return system_error("created");
      struct stat opened{}, named{};
      std::optional<Error> error;
      if (::flock(file, LOCK_EX | LOCK_NB) != 0) {
        error = errno == EWOULDBLOCK
                    ? fail(ErrorCode::io, "{}: another program is writing it", temporary_path)
                    : system_error("locked");
      } else if (::fstat(file, &opened) != 0) {
        error = system_error("examined");
      }
      if (error) {
        release();
        return *error;
      }
      // Whoever had the lock before may have renamed or removed the file in between.
      if (::stat(temporary_path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
          opened.st_ino == named.st_ino) {
        buffer.reserve(kBufferBytes);
        return static_cast<uint64_t>(opened.st_size);
      }
      release();
    }
  }

  /// True if the first `bytes` bytes of the file are those of `header`.
  bool begins_with(const std::string& header, uint64_t bytes) const {
    std::string found(bytes, '\0');
    size_t at = 0;
    while (at < found.size()) {
      const ssize_t got = ::pread(file, found.data() + at, found.size() - at, static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += static_cast<size_t>(got);
    }
    return header.starts_with(found);
  }

  Result<size_t> resume() {
    if (mistake) return *mistake;
    if (file >= 0 || finished)
      return fail(ErrorCode::invalid_argument, "{}: cannot be resumed after tensor data", path);
    DS4_ASSIGN(const uint64_t there, open_locked());
    keeps_partial = true;
    const std::string header = header_bytes();
    const bool same = begins_with(header, std::min<uint64_t>(there, header.size()));
    if (!same && !discards_part) {
      release();
      return fail(ErrorCode::invalid_argument,
                  "{}: was begun with other keys, tensors, formats, source or importance; it is kept: "
                  "--overwrite discards it",
                  temporary_path);
    }
    position = header.size();
    if (same && there >= position) {
      for (PlannedTensor& tensor : tensors) {
        const uint64_t end = position + (tensor.size_bytes + alignment - 1) / alignment * alignment;
        if (end > there) break;
        position = end;
        tensor.written_bytes = tensor.size_bytes;
        ++current;
      }
    } else {
      position = 0;
    }
    if (::ftruncate(file, static_cast<off_t>(position)) != 0) return system_error("cut");
    if (::lseek(file, static_cast<off_t>(position), SEEK_SET) < 0) return system_error("continued");
    if (position == 0) DS4_TRY(put(std::as_bytes(std::span(header))));
    return current;
  }

  Result<void> write_tensor(std::span<const std::byte> bytes) {
    DS4_TRY(begin());
    if (current == tensors.size()) {
      return fail(ErrorCode::invalid_argument, "{}: data was given after the last tensor", path);
    }
    PlannedTensor& tensor = tensors[current];
    if (bytes.size() > tensor.size_bytes - tensor.written_bytes) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} has {} bytes, but {} were given", path,
                  quote(tensor.name), tensor.size_bytes, tensor.written_bytes + bytes.size());
    }
    DS4_TRY(put(bytes));
    tensor.written_bytes += bytes.size();
    if (tensor.written_bytes < tensor.size_bytes) return {};
    ++current;
    return pad();
  }

  Result<void> finish() {
    DS4_TRY(begin());
    if (current < tensors.size()) {
      return fail(ErrorCode::invalid_argument, "{}: tensor {} is not complete, {} of {} bytes were given",
                  path, quote(tensors[current].name), tensors[current].written_bytes,
                  tensors[current].size_bytes);
    }
    DS4_TRY(flush());
    // Without this, a power failure after the rename could leave a complete name on an incomplete file.
    if (::fsync(file) != 0) return system_error("flushed");
    if (::rename(temporary_path.c_str(), path.c_str()) != 0) return system_error("renamed");
    ::close(file);
    file = -1;
    finished = true;
    return {};
  }
};

GgufWriter::GgufWriter(std::string path, uint32_t alignment) : impl_(std::make_unique<Impl>()) {
  impl_->temporary_path = path + ".tmp";
  impl_->path = std::move(path);
  impl_->alignment = alignment;
  if (alignment == 0) impl_->note(fail(ErrorCode::invalid_argument, "{}: the alignment is 0", impl_->path));
}
GgufWriter::~GgufWriter() = default;
GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;
GgufWriter& GgufWriter::operator=(GgufWriter&&) noexcept = default;

void GgufWriter::add_uint32(std::string_view key, uint32_t value) {
  impl_->add_scalar(key, GgufType::u32, value);
}
void GgufWriter::add_uint64(std::string_view key, uint64_t value) {
  impl_->add_scalar(key, GgufType::u64, value);
}
void GgufWriter::add_float32(std::string_view key, float value) {
  impl_->add_scalar(key, GgufType::f32, value);
}
void GgufWriter::add_bool(std::string_view key, bool value) {
  impl_->add_scalar(key, GgufType::boolean, static_cast<uint8_t>(value));
}
void GgufWriter::add_string(std::string_view key, std::string_view value) {
  if (!impl_->begin_key(key)) return;
  append_type(impl_->metadata, GgufType::string);
  append_string(impl_->metadata, value);
}
void GgufWriter::add_uint32_array(std::string_view key, std::span<const uint32_t> values) {
  impl_->add_array(key, GgufType::u32, values);
}
void GgufWriter::add_int32_array(std::string_view key, std::span<const int32_t> values) {
  impl_->add_array(key, GgufType::i32, values);
}
void GgufWriter::add_float32_array(std::string_view key, std::span<const float> values) {
  impl_->add_array(key, GgufType::f32, values);
}
void GgufWriter::add_string_array(std::string_view key, std::span<const std::string> values) {
  impl_->add_strings(key, values);
}

void GgufWriter::add_value(std::string_view key, const GgufValue& value) {
  if (key == kAlignmentKey) return;
  if (const auto* text = std::get_if<std::string_view>(&value.value)) return add_string(key, *text);
  if (const auto* array = std::get_if<GgufArray>(&value.value)) {
    if (array->element_type == GgufType::string) {
      return impl_->add_strings(key, std::span<const std::string_view>(array->strings));
    }
    if (!impl_->begin_key(key)) return;
    impl_->begin_array(array->element_type, array->count);
    impl_->metadata.append(reinterpret_cast<const char*>(array->bytes.data()), array->bytes.size());
    return;
  }
  if (!impl_->begin_key(key)) return;
  append_type(impl_->metadata, value.type);
  append_scalar(impl_->metadata, value);
}

void GgufWriter::add_tensor(std::string_view name, TensorType type, std::span<const uint64_t> dims) {
  if (impl_->mistake) return;
  if (auto added = impl_->add_tensor(name, type, dims); !added) impl_->note(std::move(added).error());
}

Result<uint64_t> GgufWriter::planned_bytes() const {
  return impl_->planned_bytes();
}

void GgufWriter::discard_part() {
  impl_->discards_part = true;
}

Result<size_t> GgufWriter::resume() {
  return impl_->resume();
}

Result<void> GgufWriter::write_tensor(std::span<const std::byte> bytes) {
  return impl_->write_tensor(bytes);
}
Result<void> GgufWriter::finish() {
  return impl_->finish();
}

}  // namespace ds4::format
