#include "format/imatrix.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <compare>
#include <cstring>
#include <limits>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "base/quote.hpp"

namespace ds4::format {
namespace {

constexpr int32_t kLongestName = 4096;
constexpr int32_t kLongestDataset = 1 << 20;

/// Reads a file from front to back; every error names it.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& path) : rest_(bytes), path_(path) {}

  bool at_end() const { return rest_.empty(); }
  size_t left() const { return rest_.size(); }

  Result<int32_t> integer(std::string_view what) {
    int32_t value = 0;
    if (rest_.size() < sizeof value) return ends_in(what);
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
    return value;
  }

  Result<int32_t> integer(std::string_view what, int32_t least, int32_t most) {
    DS4_ASSIGN(const int32_t value, integer(what));
    if (value >= least && value <= most) return value;
    return fail(ErrorCode::format, "{}: {} is {}, but must be {} to {}", path_, what, value, least, most);
  }

  Result<std::span<const std::byte>> bytes(uint64_t count, std::string_view what) {
    if (rest_.size() < count) return ends_in(what);
    const auto result = rest_.first(count);
    rest_ = rest_.subspan(count);
    return result;
  }

  Result<std::string> text(int32_t length, std::string_view what) {
    DS4_ASSIGN(const auto raw, bytes(static_cast<uint64_t>(length), what));
    return std::string(reinterpret_cast<const char*>(raw.data()), raw.size());
  }

 private:
  Error ends_in(std::string_view what) const {
    return fail(ErrorCode::format, "{}: the file ends in {}", path_, what);
  }

  std::span<const std::byte> rest_;
  const std::string& path_;
};

Result<void> check_values(std::span<const float> values, std::string_view name, const std::string& path) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || values[i] < 0)
      return fail(ErrorCode::format, "{}: value {} of {} is {}", path, i, quote(name), values[i]);
  }
  return {};
}

Result<void> read_entry(Reader& reader, const std::string& path, Imatrix& imatrix) {
  DS4_ASSIGN(const int32_t name_length, reader.integer("the length of a name", 1, kLongestName));
  DS4_ASSIGN(const std::string name, reader.text(name_length, "a name"));
  DS4_ASSIGN(const int32_t calls, reader.integer("a number of calls"));
  DS4_ASSIGN(const int32_t count,
             reader.integer("a number of values", 1, std::numeric_limits<int32_t>::max()));
  DS4_ASSIGN(const auto raw, reader.bytes(uint64_t{sizeof(float)} * static_cast<uint64_t>(count), "values"));
  std::vector<float> values(static_cast<size_t>(count));
  std::memcpy(values.data(), raw.data(), raw.size());
  if (calls > 0) {
    for (float& value : values) value /= static_cast<float>(calls);
  }
  DS4_TRY(check_values(values, name, path));
  if (!imatrix.entries.emplace(name, std::move(values)).second)
    return fail(ErrorCode::format, "{}: there are two entries {}", path, quote(name));
  return {};
}

/// Entries of routed experts come first, by layer as gate, up, down, as the original writes them; others
/// follow by name.
struct FilePlace {
  uint64_t layer = std::numeric_limits<uint64_t>::max();
  size_t matrix = 0;
  std::string_view name;

  auto operator<=>(const FilePlace&) const = default;
};

FilePlace place_of(std::string_view name) {
  constexpr std::string_view prefix = "blk.", matrices[] = {"gate", "up", "down"};
  FilePlace place{.name = name};
  if (!name.starts_with(prefix)) return place;
  uint64_t layer = 0;
  const std::string_view numbered = name.substr(prefix.size());
  const auto [end, error] = std::from_chars(numbered.data(), numbered.data() + numbered.size(), layer);
  if (error != std::errc()) return place;
  const std::string_view rest = numbered.substr(static_cast<size_t>(end - numbered.data()));
  for (size_t i = 0; i < std::size(matrices); ++i) {
    if (rest != fmt::format(".ffn_{}_exps.weight", matrices[i])) continue;
    place.layer = layer;
    place.matrix = i;
  }
  return place;
}

void append_integer(std::string& out, int32_t value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

}  // namespace

Result<std::span<const float>> Imatrix::find(std::string_view name, uint64_t columns, uint64_t expert,
                                             uint64_t experts) const {
  const auto look_up = [&](std::string_view key) -> const std::vector<float>* {
    const auto entry = entries.find(key);
    return entry == entries.end() ? nullptr : &entry->second;
  };
  const std::vector<float>* values = nullptr;
  std::string key;
  if (experts > 1) {
    for (const char* separator : {".expert.", ".expert_"}) {
      if (values) break;
      key = fmt::format("{}{}{}", name, separator, expert);
      values = look_up(key);
    }
  }
  if (!values) values = look_up(key = name);
  if (!values) return std::span<const float>();
  if (values->size() == columns) return std::span<const float>(*values);
  if (experts > 1 && values->size() % experts == 0 && values->size() / experts == columns)
    return std::span<const float>(*values).subspan(expert * columns, columns);
  return fail(ErrorCode::format, "the importance of {} has {} values for {} columns and {} experts",
              quote(key), values->size(), columns, experts);
}

Result<Imatrix> parse_imatrix(std::span<const std::byte> bytes, const std::string& path) {
  Reader reader(bytes, path);
  Imatrix imatrix;
  DS4_ASSIGN(const int32_t count,
             reader.integer("the number of entries", 0, std::numeric_limits<int32_t>::max()));
  for (int32_t i = 0; i < count; ++i) DS4_TRY(read_entry(reader, path, imatrix));
  if (reader.at_end()) return imatrix;
  DS4_ASSIGN(const int32_t chunks,
             reader.integer("the number of chunks", 0, std::numeric_limits<int32_t>::max()));
  imatrix.chunks = static_cast<uint32_t>(chunks);
  if (reader.at_end()) return imatrix;
  DS4_ASSIGN(const int32_t length, reader.integer("the length of the data set's name", 0, kLongestDataset));
  DS4_ASSIGN(imatrix.dataset, reader.text(length, "the data set's name"));
  if (!reader.at_end())
    return fail(ErrorCode::format, "{}: {} bytes follow the last field", path, reader.left());
  return imatrix;
}

Result<Imatrix> embedded_imatrix(const GgufFile& file) {
  Imatrix imatrix;
  for (const GgufTensor& tensor : file.tensors()) {
    if (!tensor.name.starts_with(imatrix_tensor_prefix)) continue;
    if (tensor.type != TensorType::f32)
      return fail(ErrorCode::format, "{}: tensor {} has type {}, but importance is F32", file.path(),
                  quote(tensor.name), type_name(tensor.type));
    std::vector<float> values(tensor.elements());
    std::memcpy(values.data(), tensor.data, values.size() * sizeof(float));
    const std::string_view name = tensor.name.substr(imatrix_tensor_prefix.size());
    DS4_TRY(check_values(values, name, file.path()));
    imatrix.entries.emplace(name, std::move(values));
  }
  if (imatrix.entries.empty())
    return fail(ErrorCode::not_found, "{}: there are no importance vectors in it (no tensor \"{}*\")",
                file.path(), imatrix_tensor_prefix);
  if (const auto dataset = file.get_string("quantize.imatrix.dataset")) imatrix.dataset = *dataset;
  if (const auto chunks = file.get_uint("quantize.imatrix.chunks_count");
      chunks && *chunks <= static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    imatrix.chunks = static_cast<uint32_t>(*chunks);
  return imatrix;
}

Result<Imatrix> read_imatrix(const std::string& path) {
  DS4_ASSIGN(const MappedFile file, MappedFile::open(path));
  constexpr std::string_view gguf_magic = "GGUF";
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() >= gguf_magic.size() &&
      std::memcmp(bytes.data(), gguf_magic.data(), gguf_magic.size()) == 0) {
    DS4_ASSIGN(const GgufFile gguf, GgufFile::open(path));
    return embedded_imatrix(gguf);
  }
  return parse_imatrix(file.bytes(), path);
}

Result<std::string> serialize_imatrix(const Imatrix& imatrix) {
  constexpr size_t most = std::numeric_limits<int32_t>::max();
  std::string out;
  if (imatrix.entries.size() > most) return fail(ErrorCode::invalid_argument, "too many importance entries");
  append_integer(out, static_cast<int32_t>(imatrix.entries.size()));
  std::vector<FilePlace> places;
  places.reserve(imatrix.entries.size());
  for (const auto& [name, values] : imatrix.entries) places.push_back(place_of(name));
  std::sort(places.begin(), places.end());
  for (const FilePlace& place : places) {
    const std::string_view name = place.name;
    const std::vector<float>& values = imatrix.entries.find(name)->second;
    if (name.empty() || name.size() > kLongestName || values.empty() || values.size() > most)
      return fail(ErrorCode::invalid_argument, "importance of {} with {} values cannot be written",
                  quote(name), values.size());
    append_integer(out, static_cast<int32_t>(name.size()));
    out += name;
    append_integer(out, 1);
    append_integer(out, static_cast<int32_t>(values.size()));
    out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  if (!imatrix.chunks && !imatrix.dataset) return out;
  append_integer(out, static_cast<int32_t>(imatrix.chunks.value_or(0)));
  if (!imatrix.dataset) return out;
  if (imatrix.dataset->size() > kLongestDataset)
    return fail(ErrorCode::invalid_argument, "the name of the data set is too long");
  append_integer(out, static_cast<int32_t>(imatrix.dataset->size()));
  return out += *imatrix.dataset;
}

}  // namespace ds4::format
