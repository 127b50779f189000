#include "format/gguf.hpp"

#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "base/quote.hpp"
#include "format/gguf_files.hpp"
#include "format/gguf_parse.hpp"

namespace ds4::format {
namespace {

/// A file name of the form <stem>-00001-of-00003.gguf.
struct SplitName {
  std::string stem;
  uint32_t number = 0;  // from 1
  uint32_t count = 0;

  std::string part(uint32_t part_number) const {
    return fmt::format("{}-{:05}-of-{:05}.gguf", stem, part_number, count);
  }
};

/// Five digits at `position`, or nothing.
std::optional<uint32_t> five_digits(std::string_view text, size_t position) {
  uint32_t value = 0;
  for (size_t i = 0; i < 5; ++i) {
    const char c = text[position + i];
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint32_t>(c - '0');
  }
  return value;
}

std::optional<SplitName> parse_split_name(const std::string& path) {
  constexpr std::string_view kPattern = "-00001-of-00003.gguf";
  if (path.size() < kPattern.size()) return std::nullopt;
  const std::string_view tail = std::string_view(path).substr(path.size() - kPattern.size());
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf") return std::nullopt;
  const auto number = five_digits(tail, 1);
  const auto count = five_digits(tail, 10);
  if (!number || !count) return std::nullopt;
  return SplitName{path.substr(0, path.size() - kPattern.size()), *number, *count};
}

const GgufValue* find_in(const GgufPart& part, std::string_view key) {
  for (const auto& [name, value] : part.metadata) {
    if (name == key) return &value;
  }
  return nullptr;
}

/// `key`, where present, must hold `expected`.
Result<void> check_split_key(const GgufPart& part, const std::string& file, std::string_view key,
                             uint64_t expected, std::string_view reason) {
  const GgufValue* value = find_in(part, key);
  if (value == nullptr) return {};
  const auto number = as_uint(*value);
  if (!number)
    return fail(ErrorCode::format, "{}: key {} must be an integer of at least 0", file, quote(key));
  if (*number != expected) {
    return fail(ErrorCode::format, "{}: key {} is {}, but {} {}", file, quote(key), *number, reason,
                expected);
  }
  return {};
}

/// A file opened on its own must not say that it is one of several.
Result<void> check_not_split(const GgufPart& part, const std::string& file) {
  const GgufValue* value = find_in(part, "split.count");
  const auto count = value == nullptr ? std::nullopt : as_uint(*value);
  if (!count || *count <= 1) return {};
  return fail(ErrorCode::format,
              "{}: key \"split.count\" says that this is one of {} files, but the name does not end in "
              "-00001-of-{:05}.gguf, so the others cannot be found",
              file, *count, *count);
}

std::optional<double> as_float(const GgufValue& value) {
  if (const auto* number = std::get_if<double>(&value.value)) return *number;
  if (const auto* number = std::get_if<uint64_t>(&value.value)) return static_cast<double>(*number);
  if (const auto* number = std::get_if<int64_t>(&value.value)) return static_cast<double>(*number);
  return std::nullopt;
}

}  // namespace

struct GgufFile::Impl {
  std::string path;
  uint64_t file_bytes = 0;
  std::vector<MappedFile> files;
  std::vector<std::pair<std::string_view, GgufValue>> metadata;
  std::vector<GgufTensor> tensors;
  NameIndex keys;
  NameIndex names;

  /// Appends the tensors of a part; the first part also gives the metadata.
  void add(GgufPart part, uint64_t bytes, bool first) {
    file_bytes += bytes;
    if (first) metadata = std::move(part.metadata);
    tensors.insert(tensors.end(), part.tensors.begin(), part.tensors.end());
  }

  Result<void> index() {
    std::vector<std::string_view> text;
    text.reserve(metadata.size());
    for (const auto& record : metadata) text.push_back(record.first);
    keys.build(std::move(text));
    text.clear();
    text.reserve(tensors.size());
    for (const GgufTensor& tensor : tensors) text.push_back(tensor.name);
    if (const size_t repeated = names.build(std::move(text)); repeated != NameIndex::none) {
      return fail(ErrorCode::format, "{}: tensor {} appears twice", path, quote(tensors[repeated].name));
    }
    return {};
  }

  Result<const GgufValue*> require(std::string_view key) const {
    const size_t found = keys.find(key);
    if (found == NameIndex::none)
      return fail(ErrorCode::not_found, "{}: key {} is missing", path, quote(key));
    return &metadata[found].second;
  }

  Error wrong_type(std::string_view key, const GgufValue& value, std::string_view wanted) const {
    const auto* array = std::get_if<GgufArray>(&value.value);
    return fail(ErrorCode::format, "{}: key {} must be {}, not {}{}", path, quote(key), wanted,
                array != nullptr ? "an array of " : "",
                gguf_type_name(array != nullptr ? array->element_type : value.type));
  }

  /// The array under `key`; scalar elements only.
  Result<const GgufArray*> require_scalars(std::string_view key, std::string_view wanted) const {
    DS4_ASSIGN(const GgufValue* value, require(key));
    const auto* array = std::get_if<GgufArray>(&value->value);
    if (array == nullptr || array->element_type == GgufType::string) return wrong_type(key, *value, wanted);
    return array;
  }
};

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  auto impl = std::make_unique<Impl>();
  impl->path = std::move(name);
  DS4_ASSIGN(GgufPart part, parse_gguf_part(bytes, impl->path));
  impl->add(std::move(part), bytes.size(), true);
  DS4_TRY(impl->index());
  return GgufFile(std::move(impl));
}

std::vector<std::string> gguf_files(const std::string& path) {
  const auto split = parse_split_name(path);
  if (!split) return {path};
  std::vector<std::string> files;
  for (uint32_t i = 1; i <= split->count; ++i) files.push_back(split->part(i));
  return files;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  const auto split = parse_split_name(path);
  if (split && (split->number == 0 || split->number > split->count)) {
    return fail(ErrorCode::invalid_argument, "{}: the file name asks for part {} of {}", path, split->number,
                split->count);
  }
  auto impl = std::make_unique<Impl>();
  impl->path = split ? split->part(1) : path;
  const uint32_t parts = split ? split->count : 1;
  for (uint32_t i = 0; i < parts; ++i) {
    const std::string file = split ? split->part(i + 1) : path;
    auto mapped = MappedFile::open(file);
    if (!mapped && mapped.error().code == ErrorCode::not_found && file != path) {
      return fail(ErrorCode::not_found, "{}: part {} of {} of the split model is missing", file, i + 1,
                  parts);
    }
    if (!mapped) return mapped.error();
    impl->files.push_back(std::move(mapped).value());
    const auto bytes = impl->files.back().bytes();
    DS4_ASSIGN(GgufPart part, parse_gguf_part(bytes, file));
    if (split) {
      DS4_TRY(check_split_key(part, file, "split.count", parts, "the number of files in the name is"));
      DS4_TRY(check_split_key(part, file, "split.no", i, "the name gives the number, counted from 0, as"));
    } else {
      DS4_TRY(check_not_split(part, file));
    }
    impl->add(std::move(part), bytes.size(), i == 0);
  }
  DS4_TRY(impl->index());
  if (const size_t found = impl->keys.find("split.tensors.count"); found != NameIndex::none) {
    if (as_uint(impl->metadata[found].second) != impl->tensors.size()) {
      return fail(ErrorCode::format, "{}: key \"split.tensors.count\" differs from the number of tensors, {}",
                  impl->path, impl->tensors.size());
    }
  }
  return GgufFile(std::move(impl));
}

const std::string& GgufFile::path() const {
  return impl_->path;
}
uint64_t GgufFile::file_bytes() const {
  return impl_->file_bytes;
}
uint32_t GgufFile::version() const {
  return 3;
}
const std::vector<std::pair<std::string_view, GgufValue>>& GgufFile::metadata() const {
  return impl_->metadata;
}
const std::vector<GgufTensor>& GgufFile::tensors() const {
  return impl_->tensors;
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const size_t found = impl_->keys.find(key);
  return found == NameIndex::none ? nullptr : &impl_->metadata[found].second;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const size_t found = impl_->names.find(name);
  return found == NameIndex::none ? nullptr : &impl_->tensors[found];
}

Result<uint64_t> GgufFile::get_uint(std::string_view key) const {
  DS4_ASSIGN(const GgufValue* value, impl_->require(key));
  if (const auto number = as_uint(*value)) return *number;
  if (const auto* negative = std::get_if<int64_t>(&value->value)) {
    return fail(ErrorCode::format, "{}: key {} is {}, but must not be negative", impl_->path, quote(key),
                *negative);
  }
  return impl_->wrong_type(key, *value, "an integer");
}

Result<double> GgufFile::get_float(std::string_view key) const {
  DS4_ASSIGN(const GgufValue* value, impl_->require(key));
  if (const auto number = as_float(*value)) return *number;
  return impl_->wrong_type(key, *value, "a number");
}

Result<bool> GgufFile::get_bool(std::string_view key) const {
  DS4_ASSIGN(const GgufValue* value, impl_->require(key));
  if (const auto* flag = std::get_if<bool>(&value->value)) return *flag;
  return impl_->wrong_type(key, *value, "a bool");
}

Result<std::string_view> GgufFile::get_string(std::string_view key) const {
  DS4_ASSIGN(const GgufValue* value, impl_->require(key));
  if (const auto* text = std::get_if<std::string_view>(&value->value)) return *text;
  return impl_->wrong_type(key, *value, "a string");
}

Result<std::vector<uint64_t>> GgufFile::get_uint_array(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of integers";
  DS4_ASSIGN(const GgufArray* array, impl_->require_scalars(key, kWanted));
  const size_t element_bytes = gguf_scalar_bytes(array->element_type);
  std::vector<uint64_t> result;
  result.reserve(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const GgufValue element = read_gguf_scalar(array->element_type, &array->bytes[i * element_bytes]);
    const auto number = as_uint(element);
    if (number) {
      result.push_back(*number);
    } else if (std::holds_alternative<int64_t>(element.value)) {
      return fail(ErrorCode::format, "{}: element {} of key {} is negative", impl_->path, i, quote(key));
    } else {
      return impl_->wrong_type(key, *find(key), kWanted);
    }
  }
  return result;
}

Result<std::vector<double>> GgufFile::get_float_array(std::string_view key) const {
  constexpr std::string_view kWanted = "an array of numbers";
  DS4_ASSIGN(const GgufArray* array, impl_->require_scalars(key, kWanted));
  const size_t element_bytes = gguf_scalar_bytes(array->element_type);
  std::vector<double> result;
  result.reserve(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const auto number = as_float(read_gguf_scalar(array->element_type, &array->bytes[i * element_bytes]));
    if (!number) return impl_->wrong_type(key, *find(key), kWanted);
    result.push_back(*number);
  }
  return result;
}

Result<std::span<const std::string_view>> GgufFile::get_string_array(std::string_view key) const {
  DS4_ASSIGN(const GgufValue* value, impl_->require(key));
  const auto* array = std::get_if<GgufArray>(&value->value);
  if (array == nullptr || array->element_type != GgufType::string) {
    return impl_->wrong_type(key, *value, "an array of strings");
  }
  return std::span<const std::string_view>(array->strings);
}

}  // namespace ds4::format
