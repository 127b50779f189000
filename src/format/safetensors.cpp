#include "format/safetensors.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "base/quote.hpp"
#include "format/safetensors_header.hpp"

namespace ds4::format {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kShardSuffix = ".safetensors";

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Names of the *.safetensors files of a folder, sorted.
Result<std::vector<std::string>> list_shards(const std::string& folder) {
  std::error_code ec;
  std::vector<std::string> names;
  fs::directory_iterator entry(folder, ec);
  for (; !ec && entry != fs::directory_iterator(); entry.increment(ec)) {
    std::string name = entry->path().filename().string();
    if (name.ends_with(kShardSuffix)) names.push_back(std::move(name));
  }
  if (ec) {
    const bool missing = ec == std::errc::no_such_file_or_directory;
    return fail(missing ? ErrorCode::not_found : ErrorCode::io, "{}: cannot be read as a folder: {}", folder,
                ec.message());
  }
  if (names.empty()) {
    return fail(ErrorCode::not_found, "{}: holds neither {} nor any *{} file", folder, kIndexName,
                kShardSuffix);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

uint64_t SafetensorsEntry::elements() const {
  uint64_t result = 1;
  for (const uint64_t dim : shape) result *= dim;
  return result;
}

struct SafetensorsCheckpoint::Impl {
  std::vector<MappedFile> files;
  std::vector<SafetensorsEntry> tensors;
  std::vector<std::string> names;  // of the files
  std::vector<size_t> file_of;     // index into names, one per tensor; only while loading

  Result<void> add(std::span<const std::byte> bytes, std::string file) {
    DS4_ASSIGN(std::vector<SafetensorsEntry> entries, parse_safetensors_shard(bytes, file));
    for (SafetensorsEntry& entry : entries) {
      tensors.push_back(std::move(entry));
      file_of.push_back(names.size());
    }
    names.push_back(std::move(file));
    return {};
  }

  Result<void> sort() {
    std::vector<size_t> order(tensors.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      const int compared = tensors[a].name.compare(tensors[b].name);
      return compared != 0 ? compared < 0 : a < b;
    });
    std::vector<SafetensorsEntry> sorted;
    std::vector<size_t> sorted_files;
    sorted.reserve(order.size());
    sorted_files.reserve(order.size());
    for (const size_t i : order) {
      if (!sorted.empty() && sorted.back().name == tensors[i].name) {
        const std::string& file = names[file_of[i]];
        if (sorted_files.back() == file_of[i]) {
          return fail(ErrorCode::format, "{}: tensor {} appears twice", file, quote(tensors[i].name));
        }
        return fail(ErrorCode::format, "{}: tensor {} is also in {}", file, quote(tensors[i].name),
                    names[sorted_files.back()]);
      }
      sorted.push_back(std::move(tensors[i]));
      sorted_files.push_back(file_of[i]);
    }
    tensors = std::move(sorted);
    file_of = std::move(sorted_files);
    return {};
  }

  const SafetensorsEntry* find(std::string_view name) const {
    const auto found = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](const SafetensorsEntry& entry, std::string_view key) { return entry.name < key; });
    return found == tensors.end() || found->name != name ? nullptr : &*found;
  }

  /// `map` is sorted by tensor, as `tensors` is.
  Result<void> check_against_index(const std::vector<ShardOfTensor>& map, const std::string& folder,
                                   const std::string& index_file) const {
    for (const auto& [tensor, shard] : map) {
      const SafetensorsEntry* entry = find(tensor);
      if (entry == nullptr || names[file_of[static_cast<size_t>(entry - tensors.data())]] !=
                                  (fs::path(folder) / shard).string()) {
        return fail(ErrorCode::format, "{}: tensor {} is listed in {}, but is not there", index_file,
                    quote(tensor), quote(shard));
      }
    }
    return {};
  }
};

SafetensorsCheckpoint::SafetensorsCheckpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsCheckpoint::SafetensorsCheckpoint(SafetensorsCheckpoint&&) noexcept = default;
SafetensorsCheckpoint& SafetensorsCheckpoint::operator=(SafetensorsCheckpoint&&) noexcept = default;
SafetensorsCheckpoint::~SafetensorsCheckpoint() = default;

Result<SafetensorsCheckpoint> SafetensorsCheckpoint::parse(std::span<const std::byte> bytes,
                                                           std::string name) {
  auto impl = std::make_unique<Impl>();
  DS4_TRY(impl->add(bytes, std::move(name)));
  DS4_TRY(impl->sort());
  return SafetensorsCheckpoint(std::move(impl));
}

Result<SafetensorsCheckpoint> SafetensorsCheckpoint::open(const std::string& folder) {
  const std::string index_file = (fs::path(folder) / kIndexName).string();
  std::error_code ec;
  const bool indexed = fs::exists(index_file, ec);
  std::vector<ShardOfTensor> map;
  std::vector<std::string> shards;
  if (indexed) {
    DS4_ASSIGN(const MappedFile file, MappedFile::open(index_file));
    DS4_ASSIGN(map, parse_safetensors_index(as_text(file.bytes()), index_file));
    for (const auto& entry : map) shards.push_back(entry.second);
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  } else {
    DS4_ASSIGN(shards, list_shards(folder));
  }
  auto impl = std::make_unique<Impl>();
  for (const std::string& shard : shards) {
    std::string file = (fs::path(folder) / shard).string();
    auto mapped = MappedFile::open(file);
    if (!mapped && indexed && mapped.error().code == ErrorCode::not_found) {
      return fail(ErrorCode::not_found, "{}: the shard {} it names is missing", index_file, quote(shard));
    }
    if (!mapped) return mapped.error();
    impl->files.push_back(std::move(mapped).value());
    DS4_TRY(impl->add(impl->files.back().bytes(), std::move(file)));
  }
  DS4_TRY(impl->sort());
  DS4_TRY(impl->check_against_index(map, folder, index_file));
  return SafetensorsCheckpoint(std::move(impl));
}

const std::vector<SafetensorsEntry>& SafetensorsCheckpoint::tensors() const {
  return impl_->tensors;
}
const SafetensorsEntry* SafetensorsCheckpoint::find(std::string_view name) const {
  return impl_->find(name);
}

}  // namespace ds4::format
