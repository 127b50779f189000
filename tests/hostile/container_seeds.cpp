#include "container_seeds.hpp"

#include <string_view>

#include "format/container_bytes.hpp"
#include "format/tensor_type.hpp"

namespace ds4::format {
namespace {

GgufBytes one_tensor(const std::vector<uint64_t>& dims = {8}, uint32_t type = 0, uint64_t offset = 0) {
  GgufBytes file;
  file.tensor("w", dims, type, offset).fill(32);
  return file;
}

GgufBytes with_alignment(uint64_t alignment, uint32_t written) {
  GgufBytes file;
  file.alignment = alignment;
  file.key("general.alignment", gguf_id::u32, written);
  file.tensor("a", {1}, 0, 0).tensor("b", {1}, 0, alignment).fill(alignment + 32);
  return file;
}

/// One tensor of every type the standard knows.
GgufBytes every_type() {
  GgufBytes file;
  uint64_t offset = 0;
  for (uint32_t id = 0; id <= 40; ++id) {
    const auto traits = type_traits(static_cast<TensorType>(id));
    if (!traits) continue;
    file.tensor(traits->name, {traits->block_elements, 2}, id, offset);
    offset += (2 * traits->block_bytes + 31) / 32 * 32;
  }
  return file.fill(offset);
}

}  // namespace

std::vector<Seed> gguf_seeds() {
  std::vector<Seed> seeds;
  const auto add = [&](std::string name, const GgufBytes& file, bool valid = false) {
    seeds.push_back({name + ".gguf", file.build(), valid});
  };
  add("small", small_gguf(), true);
  add("empty", {}, true);
  add("every_type", every_type(), true);
  add("alignment_20", with_alignment(20, 20), true);
  add("alignment_64", with_alignment(64, 64), true);
  add("alignment_0", with_alignment(32, 0));
  add("alignment_max", with_alignment(32, UINT32_MAX));
  add("dims_8_of_one", one_tensor({8, 1, 1, 1, 1, 1, 1, 1}), true);
  add("dims_0", one_tensor({}));
  add("dims_9", one_tensor({8, 1, 1, 1, 1, 1, 1, 1, 1}));
  add("dims_5_used", one_tensor({2, 1, 1, 1, 2}));
  add("dim_of_0", one_tensor({8, 0}));
  add("dims_overflow", one_tensor({1ULL << 62, 4}));
  add("bytes_overflow", one_tensor({1ULL << 62, 2}));
  add("type_unknown", one_tensor({8}, 5));
  add("type_beyond", one_tensor({8}, 1000));
  add("block_not_full", one_tensor({8}, 8));
  add("offset_misaligned", one_tensor({4}, 0, 4));
  add("offset_beyond", one_tensor({8}, 0, 1ULL << 40));
  add("offset_overflow", one_tensor({8}, 0, UINT64_MAX - 31));
  add("data_short", one_tensor({16}));
  GgufBytes file = one_tensor();
  add("name_twice", file.tensor("w", {8}, 0, 0));
  file = {};
  add("alias", file.tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 0).fill(64), true);
  file = {};
  add("overlap", file.tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 32).fill(64));
  file = {};
  add("overlap_same_start", file.tensor("a", {16}, 0, 0).tensor("b", {8}, 0, 0).fill(64));
  file = {};
  add("key_twice", file.text("k", "1").text("k", "2"));
  file = {};
  add("key_empty", file.text("", "1"));
  file = {};
  add("value_type_unknown", file.raw_key("k", 99, ""));
  file = {};
  add("array_nested",
      file.raw_key("k", gguf_id::array, little_endian(gguf_id::array) + little_endian<uint64_t>(1)));
  file = {};
  add("array_count_huge",
      file.raw_key("k", gguf_id::array, little_endian(gguf_id::u8) + little_endian<uint64_t>(UINT64_MAX)));
  file = {};
  add("array_strings_huge",
      file.raw_key("k", gguf_id::array,
                   little_endian(gguf_id::string) + little_endian<uint64_t>(1ULL << 61)));
  file = {};
  add("string_length_huge", file.raw_key("k", gguf_id::string, little_endian<uint64_t>(UINT64_MAX - 3)));
  file = one_tensor();
  file.extra_tensors = INT64_MAX;
  add("tensor_count_huge", file);
  file = one_tensor();
  file.extra_keys = INT64_MAX;
  add("key_count_huge", file);
  file = {};
  file.magic = 0x46554746;
  add("magic", file);
  file = {};
  file.version = 2;
  add("version_2", file);
  file = {};
  file.version = 0x03000000;
  add("version_big_endian", file);
  seeds.push_back({"nothing.gguf", "", false});
  return seeds;
}

std::vector<Seed> safetensors_seeds() {
  std::vector<Seed> seeds;
  const auto add = [&](std::string name, std::string_view header, bool valid = false) {
    seeds.push_back({name + ".safetensors", shard_bytes(header, std::string(32, '\x11')), valid});
  };
  add("small",
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a.weight":{"shape":[4],"data_offsets":[24,28],"dtype":"F8_E4M3"},)"
      R"("s":{"dtype":"BF16","shape":[],"data_offsets":[28,30]},)"
      R"("\u00e9":{"dtype":"I64","shape":[3,0],"data_offsets":[30,30]}}    )",
      true);
  add("empty", "{}", true);
  add("array", "[1,2]");
  add("deep", std::string(64, '[') + std::string(64, ']'));
  add("cut", R"({"w":{"dtype":"F32","shape":[1)");
  add("trailing", R"({} x)");
  add("dtype_unknown", R"({"w":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})");
  add("dtype_twice", R"({"w":{"dtype":"I8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})");
  add("dtype_missing", R"({"w":{"shape":[1],"data_offsets":[0,1]}})");
  add("shape_negative", R"({"w":{"dtype":"I8","shape":[-1],"data_offsets":[0,1]}})");
  add("shape_fraction", R"({"w":{"dtype":"I8","shape":[1e300],"data_offsets":[0,1]}})");
  add("shape_nested", R"({"w":{"dtype":"I8","shape":[[1]],"data_offsets":[0,1]}})");
  add("shape_overflow", R"({"w":{"dtype":"I8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})");
  add("shape_long", R"({"w":{"dtype":"I8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})");
  add("offsets_swapped", R"({"w":{"dtype":"I8","shape":[1],"data_offsets":[1,0]}})");
  add("offsets_beyond", R"({"w":{"dtype":"I8","shape":[1],"data_offsets":[32,33]}})");
  add("offsets_huge", R"({"w":{"dtype":"I8","shape":[1],"data_offsets":[0,18446744073709551615]}})");
  add("offsets_short", R"({"w":{"dtype":"I8","shape":[1],"data_offsets":[0]}})");
  add("size_wrong", R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})");
  add("overlap", R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                 R"("b":{"dtype":"I8","shape":[4],"data_offsets":[3,7]}})");
  add("name_twice", R"({"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                    R"("a":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}})");
  seeds.push_back({"length_huge.safetensors", little_endian<uint64_t>(UINT64_MAX) + "{}", false});
  seeds.push_back({"length_short.safetensors", "\x02\x00\x00", false});
  seeds.push_back({"nothing.safetensors", "", false});
  seeds.push_back(
      {"index.json",
       R"({"metadata":{"total_size":30},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})",
       false});
  seeds.push_back({"index_escape.json", R"({"weight_map":{"a":"../../etc/passwd"}})", false});
  return seeds;
}

}  // namespace ds4::format
