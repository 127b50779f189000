#include "format/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "format/container_bytes.hpp"

namespace ds4::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kSmall =
    R"({"__metadata__": {"format": "pt"},
        "b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "a.weight": {"shape": [4], "data_offsets": [24, 28], "dtype": "F8_E4M3"},
        "scalar": {"dtype": "BF16", "shape": [], "data_offsets": [28, 30]},
        "empty": {"dtype": "I64", "shape": [3, 0], "data_offsets": [30, 30]}}   )";

std::string data_bytes(size_t count) {
  std::string result(count, '\0');
  for (size_t i = 0; i < count; ++i) result[i] = static_cast<char>(i);
  return result;
}

std::string error_of(std::string_view header, size_t data = 64) {
  const AlignedBytes bytes(shard_bytes(header, data_bytes(data)));
  const auto parsed = SafetensorsCheckpoint::parse(bytes.span(), "m");
  if (parsed) return "no error";
  EXPECT_THAT(parsed.error().message, StartsWith("m: "));
  return parsed.error().message.substr(3);
}

/// Header with one tensor "w" of the given fields.
std::string one(std::string_view fields) {
  return R"({"w": {)" + std::string(fields) + "}}";
}

TEST(Safetensors, ReadsAShard) {
  const AlignedBytes bytes(shard_bytes(kSmall, data_bytes(30)));
  const auto file = SafetensorsCheckpoint::parse(bytes.span(), "m");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 4U);
  EXPECT_EQ(file->tensors()[0].name, "a.weight");  // sorted by name
  const SafetensorsEntry* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, SafetensorsType::f32);
  EXPECT_THAT(b->shape, ElementsAre(2, 3));
  EXPECT_EQ(b->elements(), 6U);
  ASSERT_EQ(b->bytes.size(), 24U);
  EXPECT_EQ(std::to_integer<int>(b->bytes[23]), 23);
  EXPECT_EQ(std::to_integer<int>(file->find("a.weight")->bytes[0]), 24);
  EXPECT_EQ(file->find("scalar")->elements(), 1U);
  EXPECT_EQ(file->find("empty")->elements(), 0U);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
  EXPECT_EQ(file->find("c"), nullptr);
}

TEST(Safetensors, EveryType) {
  struct Case {
    std::string_view name;
    SafetensorsType type;
    size_t bytes;
  };
  const Case cases[] = {
      {"F64", SafetensorsType::f64, 8},         {"F32", SafetensorsType::f32, 4},
      {"F16", SafetensorsType::f16, 2},         {"BF16", SafetensorsType::bf16, 2},
      {"I64", SafetensorsType::i64, 8},         {"I32", SafetensorsType::i32, 4},
      {"I16", SafetensorsType::i16, 2},         {"I8", SafetensorsType::i8, 1},
      {"U8", SafetensorsType::u8, 1},           {"BOOL", SafetensorsType::boolean, 1},
      {"F8_E4M3", SafetensorsType::f8_e4m3, 1}, {"F8_E8M0", SafetensorsType::f8_e8m0, 1},
  };
  for (const Case& c : cases) {
    const std::string header =
        one(R"("dtype": ")" + std::string(c.name) + R"(", "shape": [3], "data_offsets": [0, )" +
            std::to_string(3 * c.bytes) + "]");
    const AlignedBytes bytes(shard_bytes(header, data_bytes(3 * c.bytes)));
    const auto file = SafetensorsCheckpoint::parse(bytes.span(), "m");
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->tensors()[0].type, c.type) << c.name;
    EXPECT_EQ(safetensors_type_name(c.type), c.name);
    EXPECT_EQ(safetensors_element_bytes(c.type), c.bytes);
  }
}

TEST(Safetensors, EscapedAndLongNames) {
  const std::string name(10000, 'n');
  const std::string header = R"({"\u0061\"b": {"dtype":"I8","shape":[1],"data_offsets":[0,1]}, ")" + name +
                             R"(": {"dtype":"I8","shape":[1],"data_offsets":[1,2]}})";
  const AlignedBytes bytes(shard_bytes(header, data_bytes(2)));
  const auto file = SafetensorsCheckpoint::parse(bytes.span(), "m");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_NE(file->find("a\"b"), nullptr);
  EXPECT_NE(file->find(name), nullptr);
}

TEST(Safetensors, ChecksTheHeaderItself) {
  const AlignedBytes tiny("1234567");
  EXPECT_EQ(SafetensorsCheckpoint::parse(tiny.span(), "m").error().message,
            "m: ends inside the field header length");
  const AlignedBytes longer(little_endian<uint64_t>(11) + "{}");
  EXPECT_EQ(SafetensorsCheckpoint::parse(longer.span(), "m").error().message,
            "m: the field header length is 11, allowed are 2");
  const AlignedBytes huge(little_endian<uint64_t>(UINT64_MAX) + "{}");
  EXPECT_THAT(SafetensorsCheckpoint::parse(huge.span(), "m").error().message,
              HasSubstr("the field header length"));
  EXPECT_THAT(error_of(""), HasSubstr("the header is not valid JSON at byte 0"));
  EXPECT_THAT(error_of("{"), HasSubstr("the header is not valid JSON"));
  EXPECT_THAT(error_of(R"({"w": {"dtype")"), HasSubstr("the header is not valid JSON"));
  EXPECT_THAT(error_of("{} {}"), HasSubstr("JSON"));
  EXPECT_EQ(error_of("[]"), "the JSON text must be an object");
  EXPECT_EQ(error_of("7"), "the JSON text must be an object");
  EXPECT_EQ(error_of("null"), "the JSON text must be an object");
  EXPECT_EQ(error_of(R"("text")"), "the JSON text must be an object");
  EXPECT_THAT(error_of(std::string(100000, '[')), HasSubstr("the JSON text must be an object"));
  EXPECT_EQ(error_of("{}"), "no error");
}

TEST(Safetensors, ChecksTheFormOfEntries) {
  EXPECT_EQ(error_of(R"({"w": 1})"), "the entry \"w\" of the header is not an object");
  EXPECT_EQ(error_of(R"({"w": []})"), "the entry \"w\" of the header is not an object");
  EXPECT_EQ(error_of(R"({"w": "x"})"), "the entry \"w\" of the header is not an object");
  EXPECT_EQ(error_of(R"({"w": {}})"), "tensor \"w\" has no dtype");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "data_offsets": [0, 4])")), "tensor \"w\" has no shape");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [1])")), "tensor \"w\" has no data_offsets");
  EXPECT_EQ(error_of(one(R"("dtype": "F8_E5M2")")), "tensor \"w\" has the unknown dtype \"F8_E5M2\"");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "dtype": "F16")")), "tensor \"w\" has dtype twice");
  EXPECT_EQ(error_of(one(R"("shape": [1], "shape": [1])")), "tensor \"w\" has shape twice");
  EXPECT_THAT(error_of(one(R"("dtype": 3)")), HasSubstr("the field \"dtype\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("shape": 3)")), HasSubstr("the field \"shape\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("shape": [[3]])")), HasSubstr("the field \"shape\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("shape": ["3"])")), HasSubstr("the field \"shape\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("shape": {})")), HasSubstr("the field \"shape\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("extra": [3])")), HasSubstr("the field \"extra\" of the header entry \"w\""));
  EXPECT_THAT(error_of(one(R"("shape": [-1])")), HasSubstr("shape of tensor \"w\" holds a number"));
  EXPECT_THAT(error_of(one(R"("shape": [1.5])")), HasSubstr("shape of tensor \"w\" holds a number"));
  EXPECT_THAT(error_of(one(R"("shape": [1,1,1,1,1,1,1,1,1])")), HasSubstr("more than 8 numbers"));
  EXPECT_THAT(error_of(R"({"__metadata__": {"a": 1}})"), HasSubstr("\"__metadata__\""));
  EXPECT_THAT(error_of(R"({"__metadata__": {"a": {}}})"), HasSubstr("\"__metadata__\""));
}

TEST(Safetensors, ChecksShapesAndOffsets) {
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])")),
            "tensor \"w\" needs 8 bytes by its shape and dtype, but data_offsets give 4");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [1], "data_offsets": [64, 68])")),
            "tensor \"w\" ends at byte 68 of the data, which has only 64");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [1], "data_offsets": [8, 4])")),
            "data_offsets of tensor \"w\" are not a begin and an end");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [1], "data_offsets": [8])")),
            "data_offsets of tensor \"w\" are not a begin and an end");
  EXPECT_EQ(error_of(one(R"("dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0])")),
            "the shape of tensor \"w\" multiplies to more than 64 bits");
  EXPECT_THAT(error_of(one(R"("dtype": "I8", "shape": [1], "data_offsets": [0, 18446744073709551615])")),
              HasSubstr("tensor \"w\" ends at byte 18446744073709551615"));
  const std::string tensor = R"({"dtype": "I8", "shape": [4], "data_offsets": )";
  EXPECT_EQ(error_of(R"({"x": )" + tensor + R"([0, 4]}, "y": )" + tensor + "[3, 7]}}"),
            "the data of tensor \"y\" overlaps that of tensor \"x\"");
  EXPECT_EQ(error_of(R"({"x": )" + tensor + R"([0, 4]}, "x": )" + tensor + "[4, 8]}}"),
            "tensor \"x\" appears twice");
}

class SafetensorsFolder : public ::testing::Test {
 protected:
  /// A shard with one I8 tensor of one byte for each name.
  void write_shard(std::string_view file, const std::vector<std::string>& names) {
    std::string header = "{";
    for (size_t i = 0; i < names.size(); ++i) {
      header += (i == 0 ? "\"" : ", \"") + names[i] + R"(": {"dtype":"I8","shape":[1],"data_offsets":[)" +
                std::to_string(i) + "," + std::to_string(i + 1) + "]}";
    }
    folder_.write(file, shard_bytes(header + "}", data_bytes(names.size())));
  }
  void write_index(std::string_view map) {
    folder_.write(
        "model.safetensors.index.json",
        R"({"metadata": {"total_size": 3, "deep": [{"x": null}]}, "weight_map": )" + std::string(map) + "}");
  }
  std::string error() {
    const auto opened = SafetensorsCheckpoint::open(folder_.path());
    if (opened) return "no error";
    EXPECT_THAT(opened.error().message, StartsWith(folder_.path()));
    return opened.error().message.substr(folder_.path().size());
  }

  TestFolder folder_;
};

TEST_F(SafetensorsFolder, WithoutAnIndexAllShardsCount) {
  write_shard("model-2.safetensors", {"c"});
  write_shard("model-1.safetensors", {"b", "a"});
  folder_.write("config.json", "{}");
  const auto opened = SafetensorsCheckpoint::open(folder_.path());
  ASSERT_TRUE(opened) << opened.error().message;
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : opened->tensors()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "c"));
  EXPECT_EQ(std::to_integer<int>(opened->find("a")->bytes[0]), 1);
}

TEST_F(SafetensorsFolder, AnIndexChoosesTheShards) {
  write_shard("one.safetensors", {"a"});
  write_shard("two.safetensors", {"b"});
  write_shard("old.safetensors", {"a"});
  write_index(R"({"b": "two.safetensors", "a": "one.safetensors"})");
  const auto opened = SafetensorsCheckpoint::open(folder_.path());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->tensors().size(), 2U);
}

TEST_F(SafetensorsFolder, IndexAndShardsMustAgree) {
  write_shard("one.safetensors", {"a"});
  write_shard("two.safetensors", {"b"});
  write_index(R"({"a": "one.safetensors", "b": "one.safetensors"})");
  EXPECT_EQ(error(),
            "/model.safetensors.index.json: tensor \"b\" is listed in \"one.safetensors\", but is not there");
  write_index(R"({"b": "one.safetensors", "a": "two.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor \"a\" is listed in \"two.safetensors\", but is not there"));
  write_index(R"({"a": "three.safetensors"})");
  EXPECT_EQ(error(), "/model.safetensors.index.json: the shard \"three.safetensors\" it names is missing");
}

TEST_F(SafetensorsFolder, ChecksTheIndex) {
  write_shard("one.safetensors", {"a"});
  write_index(R"({"a": "one.safetensors", "a": "one.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor \"a\" appears twice in \"weight_map\""));
  for (const std::string name :
       {"../one.safetensors", "/etc/passwd", "", ".", "x/../one.safetensors", "a\\u0000b"}) {
    write_index(R"({"a": ")" + name + R"("})");
    EXPECT_THAT(error(), HasSubstr("is not a plain file name")) << name;
  }
  write_index("[]");
  EXPECT_THAT(error(), HasSubstr("\"weight_map\" is not an object"));
  write_index(R"({"a": 1})");
  EXPECT_THAT(error(), HasSubstr("the entry \"a\" of \"weight_map\" is not a file name"));
  write_index(R"({"a": {"b": "c"}})");
  EXPECT_THAT(error(), HasSubstr("the entry \"a\" of \"weight_map\" is not a file name"));
  folder_.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(error(), HasSubstr("the field \"weight_map\" is missing"));
  folder_.write("model.safetensors.index.json", "");
  EXPECT_THAT(error(), HasSubstr("the index is not valid JSON"));
  folder_.write("model.safetensors.index.json", R"({"weight_map": {}, "weight_map": {}})");
  EXPECT_THAT(error(), HasSubstr("\"weight_map\" appears twice"));
}

TEST_F(SafetensorsFolder, OneNameInTwoShards) {
  write_shard("one.safetensors", {"a"});
  write_shard("two.safetensors", {"b", "a"});
  EXPECT_EQ(error(), "/two.safetensors: tensor \"a\" is also in " + folder_.file("one.safetensors"));
}

TEST_F(SafetensorsFolder, FoldersThatHoldNothing) {
  EXPECT_THAT(error(), HasSubstr("holds neither model.safetensors.index.json nor any *.safetensors file"));
  const auto missing = SafetensorsCheckpoint::open(folder_.file("missing"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  std::filesystem::create_directory(folder_.file("dir.safetensors"));
  EXPECT_THAT(error(), HasSubstr("/dir.safetensors: is a directory, not a file"));
}

}  // namespace
}  // namespace ds4::format
