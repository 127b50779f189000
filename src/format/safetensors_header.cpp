#include "format/safetensors_header.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include <boost/json/basic_parser_impl.hpp>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "base/quote.hpp"

namespace ds4::format {
namespace {

namespace json = boost::json;

static_assert(std::endian::native == std::endian::little, "tensors are read in place as little endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors format
constexpr size_t kMaxDims = 8;
constexpr size_t kMaxDepth = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

/// Receives the events of the JSON parser and keeps the path of keys; the two documents derive from it. A
/// stream of events instead of a tree: a tree loses repeated keys, and costs many times the memory of the
/// text.
template <class Document>
class JsonEvents {
 public:
  static constexpr size_t max_object_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_array_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_key_size = std::numeric_limits<size_t>::max();
  static constexpr size_t max_string_size = std::numeric_limits<size_t>::max();
  using Code = json::error_code;

  explicit JsonEvents(const std::string& file) : file_(file) {}

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code& ec) {
    // Every document is an object, so the path is empty only for the outermost one.
    if (opened_ && !check(document().begin_object(), ec)) return false;
    opened_ = true;
    path_.emplace_back();
    return true;
  }
  bool on_object_end(size_t, Code& ec) {
    path_.pop_back();
    return path_.empty() || check(document().end_object(), ec);
  }
  bool on_array_begin(Code& ec) { return inside(ec) && check(document().begin_array(), ec); }
  bool on_array_end(size_t, Code& ec) { return check(document().end_array(), ec); }
  bool on_key_part(std::string_view part, size_t, Code&) { return text_.append(part), true; }
  bool on_key(std::string_view part, size_t, Code&) {
    text_.append(part);
    path_.back() = std::exchange(text_, {});
    return true;
  }
  bool on_string_part(std::string_view part, size_t, Code&) { return text_.append(part), true; }
  bool on_string(std::string_view part, size_t, Code& ec) {
    text_.append(part);
    return inside(ec) && check(document().string(std::exchange(text_, {})), ec);
  }
  bool on_number_part(std::string_view, Code&) { return true; }
  bool on_uint64(uint64_t value, std::string_view, Code& ec) {
    return inside(ec) && check(document().number(value), ec);
  }
  bool on_int64(int64_t value, std::string_view, Code& ec) {
    const auto natural = value < 0 ? std::nullopt : std::optional<uint64_t>(value);
    return inside(ec) && check(document().number(natural), ec);
  }
  bool on_double(double, std::string_view, Code& ec) {
    return inside(ec) && check(document().number(std::nullopt), ec);
  }
  bool on_bool(bool, Code& ec) { return inside(ec) && check(document().other(), ec); }
  bool on_null(Code& ec) { return inside(ec) && check(document().other(), ec); }
  bool on_comment_part(std::string_view, Code&) { return true; }
  bool on_comment(std::string_view, Code&) { return true; }

  /// Why the document itself refused to go on.
  std::optional<Error> refusal;

 protected:
  const std::string& file() const { return file_; }
  /// Keys from the outermost object inwards; one per open object.
  const std::vector<std::string>& path() const { return path_; }

 private:
  Document& document() { return static_cast<Document&>(*this); }

  bool inside(Code& ec) {
    if (!path_.empty()) return true;
    return check(fail(ErrorCode::format, "{}: the JSON text must be an object", file_), ec);
  }

  bool check(Result<void> result, Code& ec) {
    if (result) return true;
    refusal = std::move(result).error();
    ec = json::make_error_code(json::error::exception);  // any code: it only stops the parser
    return false;
  }

  const std::string& file_;
  std::vector<std::string> path_;
  std::string text_;  // parts of the current key or string
  bool opened_ = false;
};

/// Runs the parser over a whole document; `what` names the document in errors.
template <class Document>
Result<void> run_parser(json::basic_parser<Document>& parser, std::string_view text, const std::string& file,
                        std::string_view what) {
  json::error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (parser.handler().refusal) return *parser.handler().refusal;
  if (ec)
    return fail(ErrorCode::format, "{}: {} is not valid JSON at byte {}: {}", file, what, used, ec.message());
  // Writers pad the header with spaces to align the data.
  if (text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) {
    return fail(ErrorCode::format, "{}: {} has text after its JSON at byte {}", file, what, used);
  }
  return {};
}

json::parse_options strict_options() {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  return options;
}

struct TypeName {
  std::string_view name;
  SafetensorsType type;
  size_t bytes;
};
constexpr TypeName kTypes[] = {
    {"F64", SafetensorsType::f64, 8},         {"F32", SafetensorsType::f32, 4},
    {"F16", SafetensorsType::f16, 2},         {"BF16", SafetensorsType::bf16, 2},
    {"I64", SafetensorsType::i64, 8},         {"I32", SafetensorsType::i32, 4},
    {"I16", SafetensorsType::i16, 2},         {"I8", SafetensorsType::i8, 1},
    {"U8", SafetensorsType::u8, 1},           {"BOOL", SafetensorsType::boolean, 1},
    {"F8_E4M3", SafetensorsType::f8_e4m3, 1}, {"F8_E8M0", SafetensorsType::f8_e8m0, 1},
};

const TypeName& type_row(SafetensorsType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const TypeName& row) { return row.type == type; });
}

/// Header of a shard: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...} and an
/// optional
/// "__metadata__" object of strings.
class ShardHeader : public JsonEvents<ShardHeader> {
 public:
  struct Record {
    std::string name;
    std::optional<SafetensorsType> type;
    std::optional<std::vector<uint64_t>> shape;
    std::optional<std::vector<uint64_t>> offsets;
  };

  using JsonEvents::JsonEvents;

  Result<void> begin_object() {
    if (path().size() > 1) return unexpected();
    if (!in_metadata()) records.push_back({path()[0], {}, {}, {}});
    return {};
  }

  Result<void> end_object() {
    if (in_metadata()) return {};
    const Record& record = records.back();
    const std::string_view missing = !record.type      ? "dtype"
                                     : !record.shape   ? "shape"
                                     : !record.offsets ? "data_offsets"
                                                       : "";
    if (missing.empty()) return {};
    return fail(ErrorCode::format, "{}: tensor {} has no {}", file(), quote(record.name), missing);
  }

  Result<void> begin_array() {
    if (path().size() != 2 || in_metadata() || list_ != nullptr) return unexpected();
    Record& record = records.back();
    auto* const target = path()[1] == "shape"          ? &record.shape
                         : path()[1] == "data_offsets" ? &record.offsets
                                                       : nullptr;
    if (target == nullptr) return unexpected();
    if (*target) return repeated();
    list_ = &target->emplace();
    return {};
  }

  Result<void> end_array() {
    list_ = nullptr;
    return {};
  }

  Result<void> string(const std::string& text) {
    if (path().size() == 2 && in_metadata()) return {};
    if (path().size() != 2 || path()[1] != "dtype" || list_ != nullptr) return unexpected();
    Record& record = records.back();
    if (record.type) return repeated();
    for (const TypeName& row : kTypes) {
      if (row.name == text) {
        record.type = row.type;
        return {};
      }
    }
    return fail(ErrorCode::unsupported, "{}: tensor {} has the unknown dtype {}", file(), quote(record.name),
                quote(text));
  }

  Result<void> number(std::optional<uint64_t> value) {
    if (list_ == nullptr) return unexpected();
    if (!value) {
      return fail(ErrorCode::format, "{}: {} of tensor {} holds a number that is not a 64-bit count", file(),
                  path()[1], quote(path()[0]));
    }
    if (list_->size() == kMaxDims) {
      return fail(ErrorCode::unsupported, "{}: {} of tensor {} has more than {} numbers", file(), path()[1],
                  quote(path()[0]), kMaxDims);
    }
    list_->push_back(*value);
    return {};
  }

  Result<void> other() { return unexpected(); }

  std::vector<Record> records;

 private:
  bool in_metadata() const { return path()[0] == kMetadataKey; }

  Error unexpected() const {
    if (path().size() == 1) {
      return fail(ErrorCode::format, "{}: the entry {} of the header is not an object", file(),
                  quote(path()[0]));
    }
    return fail(ErrorCode::format, "{}: the field {} of the header entry {} has the wrong form", file(),
                quote(path()[1]), quote(path()[0]));
  }

  Error repeated() const {
    return fail(ErrorCode::format, "{}: tensor {} has {} twice", file(), quote(path()[0]), path()[1]);
  }

  std::vector<uint64_t>* list_ = nullptr;  // the array being read
};

Result<SafetensorsEntry> place(ShardHeader::Record record, std::span<const std::byte> data,
                               const std::string& file) {
  const std::vector<uint64_t>& offsets = *record.offsets;
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return fail(ErrorCode::format, "{}: data_offsets of tensor {} are not a begin and an end", file,
                quote(record.name));
  }
  if (offsets[1] > data.size()) {
    return fail(ErrorCode::format, "{}: tensor {} ends at byte {} of the data, which has only {}", file,
                quote(record.name), offsets[1], data.size());
  }
  auto bytes = std::optional<uint64_t>(type_row(*record.type).bytes);
  for (const uint64_t dim : *record.shape) {
    if (bytes) bytes = checked_multiply(*bytes, dim);
  }
  if (!bytes) {
    return fail(ErrorCode::format, "{}: the shape of tensor {} multiplies to more than 64 bits", file,
                quote(record.name));
  }
  if (*bytes != offsets[1] - offsets[0]) {
    return fail(ErrorCode::format,
                "{}: tensor {} needs {} bytes by its shape and dtype, but data_offsets give {}", file,
                quote(record.name), *bytes, offsets[1] - offsets[0]);
  }
  return SafetensorsEntry{std::move(record.name), *record.type, std::move(*record.shape),
                          data.subspan(offsets[0], *bytes)};
}

Result<void> check_overlaps(const std::vector<SafetensorsEntry>& entries, const std::string& file) {
  std::vector<const SafetensorsEntry*> by_offset;
  by_offset.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    if (!entry.bytes.empty()) by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const SafetensorsEntry& first = *by_offset[i - 1];
    const SafetensorsEntry& second = *by_offset[i];
    if (second.bytes.data() < first.bytes.data() + first.bytes.size()) {
      return fail(ErrorCode::format, "{}: the data of tensor {} overlaps that of tensor {}", file,
                  quote(second.name), quote(first.name));
    }
  }
  return {};
}

/// {"metadata": anything, "weight_map": {"tensor": "shard file", ...}}
class FolderIndex : public JsonEvents<FolderIndex> {
 public:
  using JsonEvents::JsonEvents;

  Result<void> begin_object() {
    if (!in_map()) return {};
    if (path().size() > 1) return unexpected();
    if (found) return fail(ErrorCode::format, "{}: the field \"weight_map\" appears twice", file());
    found = true;
    return {};
  }
  Result<void> end_object() { return {}; }
  Result<void> begin_array() { return other(); }
  Result<void> end_array() { return {}; }

  Result<void> string(std::string text) {
    if (!in_map()) return {};
    if (path().size() != 2) return unexpected();
    if (text.empty() || text.front() == '.' || text.find('/') != std::string::npos ||
        text.find('\0') != std::string::npos) {
      return fail(ErrorCode::format, "{}: the shard {} of tensor {} is not a plain file name", file(),
                  quote(text), quote(path()[1]));
    }
    map.emplace_back(path()[1], std::move(text));
    return {};
  }

  Result<void> number(std::optional<uint64_t>) { return other(); }
  Result<void> other() { return in_map() ? Result<void>(unexpected()) : Result<void>(); }

  bool found = false;
  std::vector<ShardOfTensor> map;

 private:
  bool in_map() const { return path()[0] == "weight_map"; }

  Error unexpected() const {
    if (path().size() == 1)
      return fail(ErrorCode::format, "{}: the field \"weight_map\" is not an object", file());
    return fail(ErrorCode::format, "{}: the entry {} of \"weight_map\" is not a file name", file(),
                quote(path()[1]));
  }
};

}  // namespace

std::string_view safetensors_type_name(SafetensorsType type) {
  return type_row(type).name;
}
size_t safetensors_element_bytes(SafetensorsType type) {
  return type_row(type).bytes;
}

Result<std::vector<SafetensorsEntry>> parse_safetensors_shard(std::span<const std::byte> bytes,
                                                              const std::string& file) {
  if (bytes.size() < kLengthBytes) {
    return fail(ErrorCode::format, "{}: ends inside the field header length", file);
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > bytes.size() - kLengthBytes || header_bytes > kMaxHeaderBytes) {
    return fail(ErrorCode::format, "{}: the field header length is {}, allowed are {}", file, header_bytes,
                std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, header_bytes);
  json::basic_parser<ShardHeader> parser(strict_options(), file);
  DS4_TRY(run_parser(parser, text, file, "the header"));
  const auto data = bytes.subspan(kLengthBytes + header_bytes);
  std::vector<SafetensorsEntry> entries;
  entries.reserve(parser.handler().records.size());
  for (ShardHeader::Record& record : parser.handler().records) {
    DS4_ASSIGN(SafetensorsEntry entry, place(std::move(record), data, file));
    entries.push_back(std::move(entry));
  }
  DS4_TRY(check_overlaps(entries, file));
  return entries;
}

Result<std::vector<ShardOfTensor>> parse_safetensors_index(std::string_view text, const std::string& file) {
  json::basic_parser<FolderIndex> parser(strict_options(), file);
  DS4_TRY(run_parser(parser, text, file, "the index"));
  if (!parser.handler().found)
    return fail(ErrorCode::format, "{}: the field \"weight_map\" is missing", file);
  std::vector<ShardOfTensor> map = std::move(parser.handler().map);
  std::sort(map.begin(), map.end());
  const auto repeated = std::adjacent_find(map.begin(), map.end(),
                                           [](const auto& a, const auto& b) { return a.first == b.first; });
  if (repeated != map.end()) {
    return fail(ErrorCode::format, "{}: tensor {} appears twice in \"weight_map\"", file,
                quote(repeated->first));
  }
  return map;
}

}  // namespace ds4::format
