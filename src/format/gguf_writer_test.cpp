#include "format/gguf_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "format/container_bytes.hpp"

namespace ds4::format {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string counted(size_t bytes) {
  std::string result(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<char>(i * 7 + 1);
  return result;
}

class GgufWriterTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_.file("out.gguf"); }
  bool exists(const std::string& name) const { return std::filesystem::exists(folder_.file(name)); }

  static void add(GgufWriter& writer, std::string_view name, TensorType type, std::vector<uint64_t> dims) {
    writer.add_tensor(name, type, dims);
  }

  TestFolder folder_;
};

TEST_F(GgufWriterTest, WritesTheBytesOfTheFormat) {
  GgufBytes expected;
  expected.text("general.architecture", "deepseek4")
      .key<uint32_t>("u32", gguf_id::u32, 7)
      .key<uint64_t>("u64", gguf_id::u64, 1ULL << 40)
      .key<float>("f32", gguf_id::f32, 0.5F)
      .key<uint8_t>("bool", gguf_id::boolean, 1)
      .array<uint32_t>("u32s", gguf_id::u32, {1, 2})
      .array<int32_t>("i32s", gguf_id::i32, {-1, 2})
      .array<float>("f32s", gguf_id::f32, {10.0F})
      .texts("texts", {"a", ""})
      .tensor("a", {3}, 0, 0)
      .tensor("b", {32, 2}, 8, 32);
  const std::string a = counted(12);
  const std::string b = counted(68);
  expected.data = a + std::string(20, '\0') + b + std::string(28, '\0');

  GgufWriter writer(path());
  writer.add_string("general.architecture", "deepseek4");
  writer.add_uint32("u32", 7);
  writer.add_uint64("u64", 1ULL << 40);
  writer.add_float32("f32", 0.5F);
  writer.add_bool("bool", true);
  writer.add_uint32_array("u32s", std::vector<uint32_t>{1, 2});
  writer.add_int32_array("i32s", std::vector<int32_t>{-1, 2});
  writer.add_float32_array("f32s", std::vector<float>{10.0F});
  writer.add_string_array("texts", std::vector<std::string>{"a", ""});
  add(writer, "a", TensorType::f32, {3});
  add(writer, "b", TensorType::q8_0, {32, 2});
  ASSERT_TRUE(writer.write_tensor(bytes_of(a)));
  EXPECT_FALSE(exists("out.gguf"));
  ASSERT_TRUE(writer.write_tensor(bytes_of(b.substr(0, 10))));
  ASSERT_TRUE(writer.write_tensor(bytes_of(b.substr(10))));
  ASSERT_TRUE(writer.finish());
  EXPECT_FALSE(exists("out.gguf.tmp"));
  EXPECT_EQ(read_whole_file(path()), expected.build());
  EXPECT_TRUE(GgufFile::open(path()));
}

TEST_F(GgufWriterTest, MetadataSurvivesACopy) {
  const AlignedBytes bytes(small_gguf().build());
  const auto original = GgufFile::parse(bytes.span(), "m.gguf");
  ASSERT_TRUE(original);
  GgufWriter writer(path(), 64);
  for (const auto& [key, value] : original->metadata()) writer.add_value(key, value);
  for (const GgufTensor& tensor : original->tensors()) {
    writer.add_tensor(tensor.name, tensor.type, std::span(tensor.dims).first(tensor.n_dims));
  }
  for (const GgufTensor& tensor : original->tensors()) {
    ASSERT_TRUE(writer.write_tensor({tensor.data, tensor.size_bytes}));
  }
  ASSERT_TRUE(writer.finish());
  const auto copy = GgufFile::open(path());
  ASSERT_TRUE(copy) << copy.error().message;
  EXPECT_EQ(*copy->get_uint("general.alignment"), 64U);
  ASSERT_EQ(copy->metadata().size(), original->metadata().size());
  for (const auto& [key, value] : original->metadata()) {
    if (key == "general.alignment") continue;
    const GgufValue* copied = copy->find(key);
    ASSERT_NE(copied, nullptr) << key;
    EXPECT_EQ(copied->type, value.type) << key;
    if (const auto* array = std::get_if<GgufArray>(&value.value)) {
      const auto& other = std::get<GgufArray>(copied->value);
      EXPECT_EQ(other.element_type, array->element_type) << key;
      EXPECT_EQ(other.strings, array->strings) << key;
      ASSERT_EQ(other.bytes.size(), array->bytes.size()) << key;
      EXPECT_TRUE(std::equal(other.bytes.begin(), other.bytes.end(), array->bytes.begin())) << key;
      continue;
    }
    if (const auto* number = std::get_if<uint64_t>(&value.value)) {
      EXPECT_EQ(std::get<uint64_t>(copied->value), *number) << key;
    }
    if (const auto* number = std::get_if<int64_t>(&value.value)) {
      EXPECT_EQ(std::get<int64_t>(copied->value), *number) << key;
    }
    if (const auto* number = std::get_if<double>(&value.value)) {
      EXPECT_EQ(std::get<double>(copied->value), *number) << key;
    }
    if (const auto* flag = std::get_if<bool>(&value.value)) {
      EXPECT_EQ(std::get<bool>(copied->value), *flag) << key;
    }
    if (const auto* text = std::get_if<std::string_view>(&value.value)) {
      EXPECT_EQ(std::get<std::string_view>(copied->value), *text) << key;
    }
  }
  for (const GgufTensor& tensor : original->tensors()) {
    const GgufTensor* copied = copy->find_tensor(tensor.name);
    ASSERT_NE(copied, nullptr);
    EXPECT_EQ(copied->type, tensor.type);
    EXPECT_EQ(copied->dims, tensor.dims);
    EXPECT_EQ(std::memcmp(copied->data, tensor.data, tensor.size_bytes), 0) << tensor.name;
  }
}

TEST_F(GgufWriterTest, TellsTheSizeBeforeItWrites) {
  for (const uint32_t alignment : {32u, 4096u}) {
    GgufWriter writer(path(), alignment);
    writer.add_string("general.name", "x");
    add(writer, "a", TensorType::f32, {3});
    add(writer, "b", TensorType::q8_0, {32, 2});
    const auto size = writer.planned_bytes();
    ASSERT_TRUE(size);
    EXPECT_FALSE(exists("out.gguf.tmp"));
    ASSERT_TRUE(writer.write_tensor(bytes_of(counted(12))));
    EXPECT_EQ(*writer.planned_bytes(), *size);
    ASSERT_TRUE(writer.write_tensor(bytes_of(counted(68))));
    ASSERT_TRUE(writer.finish());
    EXPECT_EQ(std::filesystem::file_size(path()), *size);
  }
}

// What a killed program leaves: the first `bytes` bytes of the file under its temporary name.
TEST_F(GgufWriterTest, ContinuesAfterEveryPlaceWhereAFileCanEnd) {
  const std::vector<std::string> contents = {counted(12), counted(68), counted(32), counted(4)};
  const auto describe = [](GgufWriter& writer) {
    writer.add_string("general.name", "resumed");
    add(writer, "a", TensorType::f32, {3});
    add(writer, "b", TensorType::q8_0, {32, 2});
    add(writer, "c", TensorType::f32, {8});
    add(writer, "d", TensorType::f32, {1});
  };
  for (const uint32_t alignment : {32u, 64u}) {
    GgufWriter whole(path(), alignment);
    describe(whole);
    for (const std::string& content : contents) ASSERT_TRUE(whole.write_tensor(bytes_of(content)));
    ASSERT_TRUE(whole.finish());
    const std::string expected = read_whole_file(path());
    size_t most = 0;
    for (size_t bytes = 0; bytes <= expected.size(); bytes += 3) {
      std::filesystem::remove(path());
      folder_.write("out.gguf.tmp", std::string_view(expected).substr(0, bytes));
      GgufWriter writer(path(), alignment);
      describe(writer);
      const auto complete = writer.resume();
      ASSERT_TRUE(complete) << complete.error().message;
      ASSERT_GE(*complete, most);
      most = *complete;
      for (size_t i = *complete; i < contents.size(); ++i)
        ASSERT_TRUE(writer.write_tensor(bytes_of(contents[i])));
      ASSERT_TRUE(writer.finish());
      ASSERT_EQ(read_whole_file(path()), expected) << bytes;
    }
    EXPECT_GE(most, 3u);
    std::filesystem::remove(path());
  }
}

TEST_F(GgufWriterTest, ResumeKeepsAPartAndBeginsAnewForAnotherFile) {
  const auto begin = [&](std::string_view name) {
    auto writer = std::make_unique<GgufWriter>(path());
    writer->add_string("general.name", name);
    add(*writer, "a", TensorType::f32, {8});
    add(*writer, "b", TensorType::f32, {400'000});  // more than the buffer
    return writer;
  };
  auto writer = begin("x");
  EXPECT_EQ(*writer->resume(), 0u);
  EXPECT_FALSE(writer->resume()) << "twice";
  ASSERT_TRUE(writer->write_tensor(bytes_of(counted(32))));
  auto other = begin("x");
  const auto locked = other->resume();
  ASSERT_FALSE(locked);
  EXPECT_THAT(locked.error().message, HasSubstr("another program is writing it"));
  ASSERT_TRUE(writer->write_tensor(bytes_of(counted(1'500'000))));
  writer.reset();
  EXPECT_TRUE(exists("out.gguf.tmp"));
  EXPECT_EQ(*begin("x")->resume(), 1u);
  const auto refused = begin("y")->resume();
  ASSERT_FALSE(refused) << "other metadata";
  EXPECT_THAT(refused.error().message, HasSubstr("--overwrite"));
  EXPECT_EQ(*begin("x")->resume(), 1u) << "the part is still there";
  auto discarding = begin("y");
  discarding->discard_part();
  EXPECT_EQ(*discarding->resume(), 0u);
  discarding.reset();
  EXPECT_FALSE(begin("x")->resume()) << "the part is gone now";
  writer = begin("x");
  writer->add_string("general.name", "twice");
  EXPECT_FALSE(writer->resume());
}

TEST_F(GgufWriterTest, DataLargerThanTheBuffer) {
  const std::string data = counted(5 * 1024 * 1024 + 4);
  GgufWriter writer(path());
  add(writer, "w", TensorType::f32, {data.size() / 4});
  ASSERT_TRUE(writer.write_tensor(bytes_of(data.substr(0, 100))));
  ASSERT_TRUE(writer.write_tensor(bytes_of(data.substr(100, 1 << 20))));
  ASSERT_TRUE(writer.write_tensor(bytes_of(data.substr(100 + (1 << 20)))));
  ASSERT_TRUE(writer.finish());
  const auto file = GgufFile::open(path());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(std::memcmp(file->tensors()[0].data, data.data(), data.size()), 0);
}

TEST_F(GgufWriterTest, UnfinishedWorkLeavesNothing) {
  {
    GgufWriter writer(path());
    add(writer, "w", TensorType::f32, {2});
    ASSERT_TRUE(writer.write_tensor(bytes_of(counted(4))));
    EXPECT_TRUE(exists("out.gguf.tmp"));
    const auto finished = writer.finish();
    ASSERT_FALSE(finished);
    EXPECT_EQ(finished.error().message, path() + ": tensor \"w\" is not complete, 4 of 8 bytes were given");
  }
  EXPECT_FALSE(exists("out.gguf.tmp"));
  EXPECT_FALSE(exists("out.gguf"));
}

TEST_F(GgufWriterTest, WhatAnotherRunLeftOrWritesIsKept) {
  std::ofstream(path() + ".tmp") << "hours of work";
  const auto write = [&](bool discard) {
    GgufWriter writer(path());
    if (discard) writer.discard_part();
    add(writer, "w", TensorType::f32, {1});
    auto written = writer.write_tensor(bytes_of(counted(4)));
    return written ? writer.finish() : written;
  };
  const auto refused = write(false);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("another run left this"));
  EXPECT_EQ(read_whole_file(path() + ".tmp"), "hours of work");
  ASSERT_TRUE(write(true));
  EXPECT_FALSE(exists("out.gguf.tmp"));

  GgufWriter first(path());
  add(first, "w", TensorType::f32, {2});
  ASSERT_TRUE(first.write_tensor(bytes_of(counted(4))));
  const auto second = write(true);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("another program is writing it"));
  EXPECT_TRUE(exists("out.gguf.tmp")) << "it is not the second writer's to remove";
  ASSERT_TRUE(first.write_tensor(bytes_of(counted(4))));
  ASSERT_TRUE(first.finish());
  EXPECT_TRUE(GgufFile::open(path()));
}

TEST_F(GgufWriterTest, AssignmentCleansUpTheOldFile) {
  GgufWriter writer(path());
  add(writer, "w", TensorType::f32, {2});
  ASSERT_TRUE(writer.write_tensor(bytes_of(counted(4))));
  writer = GgufWriter(folder_.file("other.gguf"));
  EXPECT_FALSE(exists("out.gguf.tmp"));
  ASSERT_TRUE(writer.finish());
  EXPECT_TRUE(GgufFile::open(folder_.file("other.gguf")));
}

TEST_F(GgufWriterTest, MistakesAreReportedWithTheirNames) {
  const auto message_of = [&](auto&& action) {
    GgufWriter writer(path());
    action(writer);
    const auto result = writer.finish();
    EXPECT_FALSE(exists("out.gguf"));
    return result ? std::string("no error") : result.error().message.substr(path().size() + 2);
  };
  EXPECT_EQ(message_of([](GgufWriter& w) { w.add_uint32("k", 1), w.add_bool("k", true); }),
            "key \"k\" was added twice");
  EXPECT_EQ(message_of([](GgufWriter& w) { w.add_string("", "x"); }), "a key is empty");
  EXPECT_EQ(message_of([](GgufWriter& w) { w.add_uint32("general.alignment", 64); }),
            "key \"general.alignment\" is set by the writer itself");
  EXPECT_EQ(
      message_of([](GgufWriter& w) { add(w, "a", TensorType::f32, {1}), add(w, "a", TensorType::f32, {1}); }),
      "tensor \"a\" was added twice");
  EXPECT_EQ(message_of([](GgufWriter& w) { add(w, "a", TensorType::q8_0, {33}); }),
            "the first dimension 33 of tensor \"a\" is not a multiple of 32, the block of Q8_0");
  EXPECT_EQ(message_of([](GgufWriter& w) { add(w, "a", static_cast<TensorType>(5), {32}); }),
            "tensor \"a\" has the unknown type 5");
  EXPECT_EQ(message_of([](GgufWriter& w) { add(w, "a", TensorType::f32, {1, 1, 1, 1, 1}); }),
            "tensor \"a\" has 5 dimensions, allowed are 1 to 4");
  EXPECT_EQ(message_of([](GgufWriter& w) { add(w, "a", TensorType::f32, {1, 0}); }),
            "dimension 1 of tensor \"a\" is 0");
  EXPECT_THAT(message_of([](GgufWriter& w) { add(w, "a", TensorType::f32, {1ULL << 40, 1ULL << 30}); }),
              HasSubstr("multiply to more than 64 bits"));
}

TEST_F(GgufWriterTest, TooMuchDataAndWrongOrder) {
  GgufWriter writer(path());
  add(writer, "w", TensorType::f32, {2});
  const auto too_much = writer.write_tensor(bytes_of(counted(12)));
  ASSERT_FALSE(too_much);
  EXPECT_THAT(too_much.error().message, HasSubstr("tensor \"w\" has 8 bytes, but 12 were given"));
  ASSERT_TRUE(writer.write_tensor(bytes_of(counted(8))));
  EXPECT_THAT(writer.write_tensor(bytes_of(counted(1))).error().message, HasSubstr("after the last tensor"));
  writer.add_uint32("late", 1);
  EXPECT_THAT(writer.finish().error().message, HasSubstr("key \"late\" was added after tensor data"));
}

TEST_F(GgufWriterTest, ReportsWhatTheSystemRefuses) {
  GgufWriter writer(folder_.file("no/such/folder.gguf"));
  const auto result = writer.finish();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::io);
  EXPECT_THAT(result.error().message, HasSubstr("folder.gguf.tmp: cannot be created"));
}

TEST_F(GgufWriterTest, AlignmentZeroIsAMistake) {
  GgufWriter writer(path(), 0);
  EXPECT_THAT(writer.finish().error().message, HasSubstr("the alignment is 0"));
  GgufWriter tensors(path(), 0);
  add(tensors, "a", TensorType::f32, {1});
  EXPECT_THAT(tensors.finish().error().message, HasSubstr("the alignment is 0"));
}

}  // namespace
}  // namespace ds4::format
