#include "format/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "format/container_bytes.hpp"

namespace ds4::format {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The error of parsing a file that must not parse, with "name: " taken off.
std::string error_of(const GgufBytes& file) {
  const AlignedBytes bytes(file.build());
  const auto parsed = GgufFile::parse(bytes.span(), "m.gguf");
  if (parsed) return "no error";
  EXPECT_THAT(parsed.error().message, StartsWith("m.gguf: "));
  return parsed.error().message.substr(8);
}

/// One F32 tensor of 8 values, for cases about one field.
GgufBytes one_tensor(const std::vector<uint64_t>& dims = {8}, uint32_t type = 0, uint64_t offset = 0) {
  GgufBytes file;
  file.tensor("w", dims, type, offset).fill(32);
  return file;
}

TEST(Gguf, ReadsEveryKindOfValue) {
  const AlignedBytes bytes(small_gguf().build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->path(), "m.gguf");
  EXPECT_EQ(file->version(), 3U);
  EXPECT_EQ(file->file_bytes(), bytes.span().size());
  EXPECT_EQ(*file->get_string("general.architecture"), "deepseek4");
  EXPECT_EQ(*file->get_uint("test.u8"), 200U);
  EXPECT_EQ(*file->get_uint("test.u16"), 60000U);
  EXPECT_EQ(*file->get_uint("test.i16"), 300U);
  EXPECT_EQ(*file->get_uint("test.u64"), UINT64_MAX);
  EXPECT_EQ(*file->get_float("test.f32"), 1.5);
  EXPECT_EQ(*file->get_float("test.f64"), 1e-6);
  EXPECT_EQ(*file->get_float("test.u8"), 200.0);
  EXPECT_EQ(*file->get_float("test.i32"), -70000.0);
  EXPECT_EQ(*file->get_float("test.i64"), -std::ldexp(1.0, 63));
  EXPECT_TRUE(*file->get_bool("test.bool"));
  EXPECT_THAT(*file->get_uint_array("test.i32s"), ElementsAre(0, 4, 128));
  EXPECT_THAT(*file->get_float_array("test.f32s"), ElementsAre(10.0, 0.5));
  EXPECT_THAT(*file->get_float_array("test.i32s"), ElementsAre(0.0, 4.0, 128.0));
  EXPECT_THAT(*file->get_string_array("test.texts"), ElementsAre("a", "", "bc"));
  ASSERT_EQ(file->metadata().size(), 15U);
  EXPECT_EQ(file->metadata()[2].first, "test.u8");
  EXPECT_EQ(file->find("test.i8")->type, GgufType::i8);
  EXPECT_EQ(std::get<int64_t>(file->find("test.i8")->value), -3);
  EXPECT_EQ(file->find("test.i9"), nullptr);
}

TEST(Gguf, FindsTensorsAndTheirBytes) {
  const GgufBytes built = small_gguf();
  const AlignedBytes bytes(built.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3U);
  EXPECT_EQ(file->tensors()[0].name, "token_embd.weight");
  const GgufTensor* experts = file->find_tensor("blk.0.ffn_gate_exps.weight");
  ASSERT_NE(experts, nullptr);
  EXPECT_EQ(experts->type, TensorType::iq2_xxs);
  EXPECT_EQ(experts->n_dims, 3U);
  EXPECT_THAT(experts->dims, ElementsAre(256, 2, 2, 1));
  EXPECT_EQ(experts->elements(), 1024U);
  EXPECT_EQ(experts->size_bytes, 264U);
  EXPECT_EQ(std::memcmp(experts->data, built.data.data() + 32, 264), 0);
  EXPECT_EQ(file->find_tensor("output_norm.weight")->data - experts->data, 320 - 32);
  EXPECT_EQ(file->find_tensor("output_norm"), nullptr);
}

TEST(Gguf, TypedAccessNamesTheKey) {
  const AlignedBytes bytes(small_gguf().build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->get_uint("absent").error().code, ErrorCode::not_found);
  EXPECT_EQ(file->get_uint("absent").error().message, "m.gguf: key \"absent\" is missing");
  EXPECT_EQ(file->get_uint("test.i32").error().message,
            "m.gguf: key \"test.i32\" is -70000, but must not be negative");
  EXPECT_EQ(file->get_uint("test.f32").error().message,
            "m.gguf: key \"test.f32\" must be an integer, not f32");
  EXPECT_EQ(file->get_uint("test.bool").error().code, ErrorCode::format);
  EXPECT_EQ(file->get_bool("test.u8").error().message, "m.gguf: key \"test.u8\" must be a bool, not u8");
  EXPECT_EQ(file->get_float("test.texts").error().message,
            "m.gguf: key \"test.texts\" must be a number, not an array of string");
  EXPECT_THAT(file->get_uint_array("test.f32s").error().message, HasSubstr("must be an array of integers"));
  EXPECT_THAT(file->get_uint_array("test.u8").error().message,
              HasSubstr("must be an array of integers, not u8"));
  EXPECT_THAT(file->get_float_array("test.texts").error().message, HasSubstr("must be an array of numbers"));
  EXPECT_THAT(file->get_string_array("test.i32s").error().message, HasSubstr("must be an array of strings"));
  EXPECT_THAT(file->get_string("test.u8").error().message, HasSubstr("must be a string"));
}

TEST(Gguf, NegativeElementsAreNamed) {
  GgufBytes built;
  built.array<int32_t>("ratios", gguf_id::i32, {4, -1});
  const AlignedBytes bytes(built.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->get_uint_array("ratios").error().message,
            "m.gguf: element 1 of key \"ratios\" is negative");
}

TEST(Gguf, EmptyFileOfRecordsIsValid) {
  const AlignedBytes bytes(GgufBytes{}.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_TRUE(file->tensors().empty());
}

TEST(Gguf, RefusesOtherFilesAndVersions) {
  GgufBytes file;
  file.magic = 0x12345678;
  EXPECT_THAT(error_of(file), HasSubstr("is not a GGUF file"));
  file = {};
  file.version = 2;
  EXPECT_EQ(error_of(file), "the header field version is 2, only 3 is supported");
  file.version = 0x03000000;
  EXPECT_THAT(error_of(file), HasSubstr("big-endian"));
}

TEST(Gguf, CountsMustFitTheFile) {
  GgufBytes file = one_tensor();
  file.extra_tensors = int64_t{1} << 62;
  EXPECT_THAT(error_of(file), HasSubstr("tensor count is 4611686018427387905, but only"));
  file = one_tensor();
  file.extra_keys = -1;  // 2^64 - 1
  EXPECT_THAT(error_of(file), HasSubstr("metadata count is 18446744073709551615, but only"));
  file = {};
  file.raw_key("k", gguf_id::array, little_endian(gguf_id::u64) + little_endian(UINT64_MAX / 8 + 2));
  EXPECT_THAT(error_of(file), HasSubstr("key \"k\" is an array of 2305843009213693953 elements, but only"));
  file = {};
  file.raw_key("k", gguf_id::array, little_endian(gguf_id::string) + little_endian<uint64_t>(1 << 30));
  EXPECT_THAT(error_of(file), HasSubstr("key \"k\" is an array of"));
  file = {};
  file.raw_key("k", gguf_id::string, little_endian(UINT64_MAX));
  EXPECT_EQ(error_of(file), "ends inside the value of key \"k\"");
}

TEST(Gguf, CountsHaveCeilingsEvenInASparseFile) {
  TestFolder folder;
  GgufBytes built;
  built.extra_keys = 1 << 20;
  const std::string path = folder.write("sparse.gguf", built.build());
  std::filesystem::resize_file(path, uint64_t{1} << 33);
  const auto file = GgufFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().message,
            path + ": the header field metadata count is 1048576, above the limit of 65536");
}

TEST(Gguf, ChecksMetadata) {
  GgufBytes file;
  file.raw_key("k", 13, "");
  EXPECT_EQ(error_of(file), "key \"k\" has the unknown value type 13");
  file = {};
  file.raw_key("k", gguf_id::array, little_endian(gguf_id::array) + little_endian<uint64_t>(0));
  EXPECT_THAT(error_of(file), HasSubstr("key \"k\" is an array of arrays"));
  file = {};
  file.key<uint32_t>("k", gguf_id::u32, 1)
      .key<uint32_t>("j", gguf_id::u32, 1)
      .key<uint32_t>("k", gguf_id::u32, 1);
  EXPECT_EQ(error_of(file), "key \"k\" appears twice");
  file = {};
  file.key<uint32_t>("", gguf_id::u32, 1);
  EXPECT_EQ(error_of(file), "the key of metadata record 0 is empty");
  file = {};
  file.key<uint8_t>("k", gguf_id::boolean, 2);
  EXPECT_EQ(error_of(file), "key \"k\" is a bool with the value 2");
}

TEST(Gguf, ChecksTheAlignment) {
  GgufBytes file = one_tensor();
  file.key<uint32_t>("general.alignment", gguf_id::u32, 0);
  EXPECT_THAT(error_of(file), HasSubstr("key \"general.alignment\" must be an integer from 1"));
  file = one_tensor();
  file.text("general.alignment", "32");
  EXPECT_THAT(error_of(file), HasSubstr("key \"general.alignment\" must be an integer from 1"));
  file = one_tensor();
  file.key<uint64_t>("general.alignment", gguf_id::u64, UINT64_MAX - 1);
  EXPECT_THAT(error_of(file), HasSubstr("key \"general.alignment\" must be an integer from 1"));
  file = one_tensor();
  file.key<uint32_t>("general.alignment", gguf_id::u32, UINT32_MAX);
  EXPECT_EQ(error_of(file), "tensor \"w\" (32 bytes at offset 0) reaches beyond the end of the file");
}

TEST(Gguf, AlignmentNeedNotBeAPowerOfTwo) {
  GgufBytes built;
  built.alignment = 20;
  built.key<uint32_t>("general.alignment", gguf_id::u32, 20);
  built.tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 20).fill(24);
  const AlignedBytes bytes(built.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors()[1].data - file->tensors()[0].data, 20);
  EXPECT_EQ(static_cast<size_t>(file->tensors()[0].data - bytes.span().data()) % 20, 0U);
}

TEST(Gguf, ElementsMustNotStraddleTheirAlignment) {
  GgufBytes file;
  file.alignment = 1;
  file.key<uint32_t>("general.alignment", gguf_id::u32, 1);
  file.tensor("bytes", {1}, 24, 0).tensor("floats", {1}, 0, 1).tensor("more", {1}, 0, 6).fill(16);
  EXPECT_THAT(error_of(file), HasSubstr("but F32 data needs a multiple of 4"));
}

TEST(Gguf, ChecksTensorDescriptions) {
  EXPECT_EQ(error_of(one_tensor({})), "tensor \"w\" has 0 dimensions, allowed are 1 to 8");
  EXPECT_EQ(error_of(one_tensor({8, 1, 1, 1, 1, 1, 1, 1, 1})),
            "tensor \"w\" has 9 dimensions, allowed are 1 to 8");
  EXPECT_EQ(error_of(one_tensor({1, 1, 1, 1, 2})), "tensor \"w\" has more than 4 dimensions above 1");
  EXPECT_EQ(error_of(one_tensor({8, 0})), "dimension 1 of tensor \"w\" is 0");
  EXPECT_EQ(error_of(one_tensor({8}, 4)), "tensor \"w\" has the unknown type 4");
  EXPECT_EQ(error_of(one_tensor({8}, UINT32_MAX)), "tensor \"w\" has the unknown type 4294967295");
  EXPECT_EQ(error_of(one_tensor({8}, 8)),
            "the first dimension 8 of tensor \"w\" is not a multiple of 32, the block of Q8_0");
  EXPECT_EQ(error_of(one_tensor({1ULL << 33, 1ULL << 31})),
            "the dimensions of tensor \"w\" multiply to more than 64 bits");
  EXPECT_EQ(error_of(one_tensor({1ULL << 40, 1ULL << 24}, 16)),
            "the dimensions of tensor \"w\" multiply to more than 64 bits");
  EXPECT_EQ(error_of(one_tensor({8}, 0, 16)),
            "the offset 16 of tensor \"w\" is not a multiple of the alignment 32");
  EXPECT_EQ(error_of(one_tensor({8}, 0, 32)),
            "tensor \"w\" (32 bytes at offset 32) reaches beyond the end of the file");
  EXPECT_THAT(error_of(one_tensor({8}, 0, UINT64_MAX - 31)), HasSubstr("reaches beyond the end of the file"));
  EXPECT_EQ(error_of(one_tensor({9})),
            "tensor \"w\" (36 bytes at offset 0) reaches beyond the end of the file");
  GgufBytes twice = one_tensor();
  twice.tensor("w", {8}, 0, 0);
  EXPECT_EQ(error_of(twice), "tensor \"w\" appears twice");
  GgufBytes nameless;
  nameless.tensor("", {8}, 0, 0).fill(32);
  EXPECT_EQ(error_of(nameless), "the name of tensor 0 is empty");
}

TEST(Gguf, FurtherDimensionsOfOneAreDropped) {
  const AlignedBytes bytes(one_tensor({4, 2, 1, 1, 1, 1, 1, 1}).build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors()[0].n_dims, 4U);
  EXPECT_THAT(file->tensors()[0].dims, ElementsAre(4, 2, 1, 1));
}

TEST(Gguf, TypesWithoutKernelsAreAcceptedAndMeasured) {
  GgufBytes built;
  built.tensor("w", {256}, 14, 0).fill(210);
  const AlignedBytes bytes(built.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->tensors()[0].size_bytes, 210U);
}

TEST(Gguf, SameTensorMayBeNamedTwiceButNotOverlap) {
  GgufBytes alias;
  alias.tensor("a", {16}, 0, 0)
      .tensor("b", {16}, 0, 0)
      .tensor("c", {16}, 0, 64)
      .tensor("d", {16}, 0, 0)
      .fill(128);
  const AlignedBytes bytes(alias.build());
  const auto file = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->find_tensor("a")->data, file->find_tensor("d")->data);

  GgufBytes partial;
  partial.tensor("b", {8}, 0, 32).tensor("a", {16}, 0, 0).fill(128);
  EXPECT_EQ(error_of(partial), "the data of tensor \"b\" overlaps that of tensor \"a\"");
  GgufBytes other_dims;
  other_dims.tensor("a", {16}, 0, 0).tensor("b", {8, 2}, 0, 0).fill(128);
  EXPECT_EQ(error_of(other_dims), "the data of tensor \"b\" overlaps that of tensor \"a\"");
  GgufBytes other_type;
  other_type.tensor("a", {16}, 0, 0).tensor("b", {16}, 26, 0).fill(128);
  EXPECT_EQ(error_of(other_type), "the data of tensor \"b\" overlaps that of tensor \"a\"");
  GgufBytes behind_alias;
  behind_alias.tensor("a", {16}, 0, 0).tensor("b", {16}, 0, 0).tensor("c", {8}, 0, 32).fill(128);
  EXPECT_THAT(error_of(behind_alias), HasSubstr("the data of tensor \"c\" overlaps"));
}

TEST(Gguf, HostileNamesStayOneShortLine) {
  GgufBytes file;
  file.tensor("evil\n\x1b[31m" + std::string(5000, 'x'), {8}, 4, 0).fill(32);
  const std::string message = error_of(file);
  EXPECT_LT(message.size(), 200U);
  EXPECT_THAT(message, HasSubstr("evil\\x0a\\x1b[31mxxx"));
}

class GgufSplit : public ::testing::Test {
 protected:
  static GgufBytes part(int number, int count) {
    GgufBytes file;
    file.key<uint16_t>("split.no", gguf_id::u16, static_cast<uint16_t>(number));
    file.key<uint16_t>("split.count", gguf_id::u16, static_cast<uint16_t>(count));
    file.tensor("blk." + std::to_string(number) + ".w", {8}, 0, 0).fill(32);
    return file;
  }
  std::string write(int number, int count, const GgufBytes& file) {
    char name[64];
    std::snprintf(name, sizeof(name), "m-%05d-of-%05d.gguf", number, count);
    return folder_.write(name, file.build());
  }
  TestFolder folder_;
};

TEST_F(GgufSplit, PartsBecomeOneModel) {
  GgufBytes first = part(0, 3);
  first.text("general.architecture", "deepseek4").key<int32_t>("split.tensors.count", gguf_id::i32, 3);
  GgufBytes third = part(2, 3);
  third.alignment = 64;  // each part has its own
  third.key<uint32_t>("general.alignment", gguf_id::u32, 64);
  const std::string paths[] = {write(1, 3, first), write(2, 3, part(1, 3)), write(3, 3, third)};
  for (const std::string& path : paths) {
    auto file = GgufFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    const GgufFile moved = std::move(*file);
    EXPECT_EQ(moved.path(), paths[0]);
    EXPECT_EQ(*moved.get_string("general.architecture"), "deepseek4");
    ASSERT_EQ(moved.tensors().size(), 3U);
    for (const char* name : {"blk.0.w", "blk.1.w", "blk.2.w"}) {
      const GgufTensor* tensor = moved.find_tensor(name);
      ASSERT_NE(tensor, nullptr) << name;
      EXPECT_EQ(std::memcmp(tensor->data, first.data.data(), 32), 0) << name;
    }
    EXPECT_EQ(moved.file_bytes(), first.build().size() + part(1, 3).build().size() + third.build().size());
  }
}

TEST_F(GgufSplit, NamesTheMissingPart) {
  const std::string first = write(1, 3, part(0, 3));
  const std::string third = write(3, 3, part(2, 3));
  for (const std::string& path : {first, third}) {
    const auto file = GgufFile::open(path);
    ASSERT_FALSE(file);
    EXPECT_EQ(file.error().code, ErrorCode::not_found);
    EXPECT_EQ(file.error().message,
              folder_.file("m-00002-of-00003.gguf") + ": part 2 of 3 of the split model is missing");
  }
}

TEST_F(GgufSplit, KeysMustAgreeWithTheNames) {
  write(1, 2, part(0, 2));
  const std::string wrong_count = write(2, 2, part(1, 3));
  EXPECT_EQ(GgufFile::open(wrong_count).error().message,
            wrong_count + ": key \"split.count\" is 3, but the number of files in the name is 2");
  write(2, 2, part(0, 2));
  EXPECT_EQ(GgufFile::open(wrong_count).error().message,
            wrong_count + ": key \"split.no\" is 0, but the name gives the number, counted from 0, as 1");
  GgufBytes text = part(1, 2);
  text.keys.clear();
  text.text("split.no", "1");
  write(2, 2, text);
  EXPECT_THAT(GgufFile::open(wrong_count).error().message, HasSubstr("key \"split.no\" must be an integer"));
}

TEST_F(GgufSplit, TensorsMustBeUniqueAndComplete) {
  GgufBytes first = part(0, 2);
  const std::string path = write(1, 2, first);
  GgufBytes second;
  second.tensor("blk.0.w", {8}, 0, 0).fill(32);
  const std::string second_path = write(2, 2, second);
  EXPECT_EQ(GgufFile::open(path).error().message, path + ": tensor \"blk.0.w\" appears twice");
  write(2, 2, part(1, 2));
  first.key<int32_t>("split.tensors.count", gguf_id::i32, 5);
  write(1, 2, first);
  EXPECT_EQ(GgufFile::open(path).error().message,
            path + ": key \"split.tensors.count\" differs from the number of tensors, 2");
}

TEST_F(GgufSplit, NamesThatPromiseNothing) {
  const std::string zero = write(0, 2, part(0, 2));
  EXPECT_THAT(GgufFile::open(zero).error().message, HasSubstr("the file name asks for part 0 of 2"));
  const std::string beyond = write(3, 2, part(0, 2));
  EXPECT_THAT(GgufFile::open(beyond).error().message, HasSubstr("the file name asks for part 3 of 2"));
  const std::string renamed = folder_.write("renamed.gguf", part(0, 2).build());
  EXPECT_THAT(GgufFile::open(renamed).error().message,
              AllOf(HasSubstr("key \"split.count\" says that this is one of 2 files"),
                    HasSubstr("-00001-of-00002.gguf")));
  const std::string single = write(1, 1, part(0, 1));
  EXPECT_TRUE(GgufFile::open(single));
  const std::string odd = folder_.write("m-0001-of-00002.gguf", one_tensor().build());
  EXPECT_TRUE(GgufFile::open(odd));
}

TEST(Gguf, OpensAVocabularyOfRealSizeQuickly) {
  GgufBytes built;
  std::vector<std::string> tokens(129280);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "token" + std::to_string(i);
  std::vector<std::string> merges(127741);
  for (size_t i = 0; i < merges.size(); ++i) merges[i] = "left" + std::to_string(i) + " right";
  built.texts("tokenizer.ggml.tokens", tokens).texts("tokenizer.ggml.merges", merges);
  built.array<int32_t>("tokenizer.ggml.token_type", gguf_id::i32, std::vector<int32_t>(129280, 1));
  for (int i = 0; i < 1328; ++i) {
    built.tensor("blk." + std::to_string(i) + ".attn_norm.weight", {8}, 0, static_cast<uint64_t>(i) * 32);
  }
  built.fill(1328 * 32);
  TestFolder folder;
  const std::string path = folder.write("big.gguf", built.build());
  const std::clock_t start = std::clock();
  const auto file = GgufFile::open(path);
  const double milliseconds = 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ((*file->get_string_array("tokenizer.ggml.merges"))[127740], "left127740 right");
  RecordProperty("open_milliseconds", std::to_string(milliseconds));
#if defined(NDEBUG) && !defined(DS4_SANITIZED)
  EXPECT_LT(milliseconds, 100.0);
#endif
}

}  // namespace
}  // namespace ds4::format
