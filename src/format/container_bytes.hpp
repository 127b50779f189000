// Container files put together byte by byte for tests: independent of the writer, and able to be wrong.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace ds4::format {

/// A folder of its own for one test; removed with everything in it.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ds4-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TestFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(std::string_view name) const { return path_ + "/" + std::string(name); }
  std::string write(std::string_view name, std::string_view content) const {
    const std::string result = file(name);
    std::ofstream(result, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return result;
  }

 private:
  std::string path_;
};

inline std::string read_whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Copy of `text` at an address that is a multiple of 8, as GgufFile::parse wants it. Exactly as long as the
/// text, so that an address sanitizer sees a read beyond it.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::string_view text) : bytes_(text.size()) {
    if (!text.empty()) std::memcpy(bytes_.data(), text.data(), text.size());
  }
  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <class T>
std::string little_endian(T value) {
  std::string result(sizeof(T), '\0');
  std::memcpy(result.data(), &value, sizeof(T));
  return result;
}

inline std::string gguf_string(std::string_view text) {
  return little_endian<uint64_t>(text.size()) + std::string(text);
}

/// Value types by their ids in the file.
namespace gguf_id {
constexpr uint32_t u8 = 0, i8 = 1, u16 = 2, i16 = 3, u32 = 4, i32 = 5, f32 = 6, boolean = 7, string = 8,
                   array = 9, u64 = 10, i64 = 11, f64 = 12;
}

/// A GGUF file record by record. Every field can be given a value that is not true.
struct GgufBytes {
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  int64_t extra_tensors = 0;  // added to the true counts
  int64_t extra_keys = 0;
  uint64_t alignment = 32;  // of the data in this file; the key is not written by itself
  std::vector<std::string> keys;
  std::vector<std::string> infos;
  std::string data;

  GgufBytes& raw_key(std::string_view key, uint32_t type, std::string_view value) {
    keys.push_back(gguf_string(key) + little_endian(type) + std::string(value));
    return *this;
  }
  template <class T>
  GgufBytes& key(std::string_view name, uint32_t type, T value) {
    return raw_key(name, type, little_endian(value));
  }
  GgufBytes& text(std::string_view name, std::string_view value) {
    return raw_key(name, gguf_id::string, gguf_string(value));
  }
  template <class T>
  GgufBytes& array(std::string_view name, uint32_t type, const std::vector<T>& values) {
    std::string value = little_endian(type) + little_endian<uint64_t>(values.size());
    for (const T& element : values) value += little_endian(element);
    return raw_key(name, gguf_id::array, value);
  }
  GgufBytes& texts(std::string_view name, const std::vector<std::string>& values) {
    std::string value = little_endian(gguf_id::string) + little_endian<uint64_t>(values.size());
    for (const std::string& element : values) value += gguf_string(element);
    return raw_key(name, gguf_id::array, value);
  }
  GgufBytes& tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
    std::string info = gguf_string(name) + little_endian(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) info += little_endian(dim);
    infos.push_back(info + little_endian(type) + little_endian(offset));
    return *this;
  }
  GgufBytes& fill(size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) data += static_cast<char>(i * 7 + 1);
    return *this;
  }

  std::string build() const {
    std::string file = little_endian(magic) + little_endian(version) +
                       little_endian<uint64_t>(infos.size() + static_cast<uint64_t>(extra_tensors)) +
                       little_endian<uint64_t>(keys.size() + static_cast<uint64_t>(extra_keys));
    for (const std::string& record : keys) file += record;
    for (const std::string& record : infos) file += record;
    if (alignment > 0) file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data;
  }
};

/// One of each kind of record; valid.
inline GgufBytes small_gguf() {
  GgufBytes file;
  file.text("general.architecture", "deepseek4")
      .key<uint32_t>("general.alignment", gguf_id::u32, 32)
      .key<uint8_t>("test.u8", gguf_id::u8, 200)
      .key<int8_t>("test.i8", gguf_id::i8, -3)
      .key<uint16_t>("test.u16", gguf_id::u16, 60000)
      .key<int16_t>("test.i16", gguf_id::i16, 300)
      .key<int32_t>("test.i32", gguf_id::i32, -70000)
      .key<float>("test.f32", gguf_id::f32, 1.5F)
      .key<uint8_t>("test.bool", gguf_id::boolean, 1)
      .key<uint64_t>("test.u64", gguf_id::u64, UINT64_MAX)
      .key<int64_t>("test.i64", gguf_id::i64, INT64_MIN)
      .key<double>("test.f64", gguf_id::f64, 1e-6)
      .array<int32_t>("test.i32s", gguf_id::i32, {0, 4, 128})
      .array<float>("test.f32s", gguf_id::f32, {10.0F, 0.5F})
      .texts("test.texts", {"a", "", "bc"})
      .tensor("token_embd.weight", {4, 3}, 1, 0)
      .tensor("blk.0.ffn_gate_exps.weight", {256, 2, 2}, 16, 32)
      .tensor("output_norm.weight", {4}, 0, 320)
      .fill(336);
  return file;
}

/// A safetensors shard around any header text.
inline std::string shard_bytes(std::string_view header, std::string_view data) {
  return gguf_string(header) + std::string(data);
}

}  // namespace ds4::format
