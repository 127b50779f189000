// GGUF and safetensors files that someone damaged, by accident or on purpose: each must parse or fail with
// one sentence that names the file and the place, without a crash and without memory beyond what the file
// justifies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "container_seeds.hpp"
#include "format/container_bytes.hpp"
#include "format/container_walk.hpp"
#include "format/gguf.hpp"
#include "format/safetensors.hpp"
#include "format/safetensors_header.hpp"

namespace {
std::atomic<size_t> live_bytes{0};
std::atomic<size_t> peak_bytes{0};
}  // namespace

// Not inlined: GCC would see malloc paired with delete and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  void* const result = std::malloc(size);
  if (result == nullptr) throw std::bad_alloc();
  const size_t live = live_bytes.fetch_add(::malloc_usable_size(result)) + ::malloc_usable_size(result);
  if (live > peak_bytes.load()) peak_bytes.store(live);
  return result;
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* pointer) noexcept {
  if (pointer != nullptr) live_bytes.fetch_sub(::malloc_usable_size(pointer));
  std::free(pointer);
}
[[gnu::noinline]] void operator delete(void* pointer, size_t) noexcept {
  operator delete(pointer);
}

namespace ds4::format {
namespace {

constexpr size_t kFreeBytes = 16 << 10;   // parser state, an error message
constexpr size_t kBytesPerFileByte = 24;  // records, their index, vector growth

/// True when a message points at the place: a quoted key, tensor or entry, a header field, or where the file
/// ends.
bool names_a_place(const std::string& message) {
  constexpr std::string_view kPlaces[] = {"key \"",
                                          "tensor \"",
                                          "entry \"",
                                          "shard \"",
                                          "field ",
                                          "the header",
                                          "the index",
                                          "weight_map",
                                          "magic bytes",
                                          "the JSON text",
                                          "the key of metadata record ",
                                          "the name of tensor "};
  return std::any_of(std::begin(kPlaces), std::end(kPlaces),
                     [&](std::string_view place) { return message.find(place) != std::string::npos; });
}

void expect_one_sentence(const std::string& message, const std::string& file) {
  ASSERT_TRUE(message.starts_with(file + ": ")) << message;
  ASSERT_LT(message.size(), file.size() + 400) << message;
  ASSERT_NE(message.back(), '.') << message;
  for (const char c : message) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << message;
  ASSERT_TRUE(names_a_place(message)) << message;
}

/// Runs `parse` and checks memory; then walks what came out. Returns whether it parsed.
template <class Parse>
bool survive(std::string_view content, const Parse& parse) {
  const AlignedBytes bytes(content);
  const size_t before = live_bytes.load();
  peak_bytes.store(before);
  const auto result = parse(bytes.span());
  const size_t used = peak_bytes.load() - before;
  EXPECT_LE(used, kFreeBytes + kBytesPerFileByte * content.size()) << content.size() << " bytes of file";
  if (result) {
    keep(walk(*result));
    return true;
  }
  expect_one_sentence(result.error().message, "m");
  return false;
}

bool survive_gguf(std::string_view content) {
  return survive(content, [](auto bytes) { return GgufFile::parse(bytes, "m"); });
}

bool survive_safetensors(std::string_view content) {
  return survive(content, [](auto bytes) { return SafetensorsCheckpoint::parse(bytes, "m"); });
}

/// Values that break naive arithmetic, in the width of one field.
template <class T>
std::vector<T> nasty_values(size_t file_bytes) {
  const T top = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  return {0,
          1,
          7,
          9,
          static_cast<T>(file_bytes),
          static_cast<T>(file_bytes / 8),
          static_cast<T>(top - 1),
          top,
          static_cast<T>(top >> 1),
          static_cast<T>(top >> 3),
          static_cast<T>(-1),
          static_cast<T>(-8),
          static_cast<T>(-31)};
}

/// Calls `visit` with every damaged version of `content`; returns how many there were.
template <class Visit>
size_t damage(const std::string& content, const Visit& visit) {
  size_t count = 0;
  const auto run = [&](const std::string& damaged) {
    visit(damaged);
    ++count;
  };
  for (size_t size = 0; size < content.size(); ++size) run(content.substr(0, size));
  std::string copy = content;
  for (size_t i = 0; i < content.size(); ++i) {
    for (const int flip : {0x01, 0x20, 0x80, 0xff}) {
      copy[i] = static_cast<char>(content[i] ^ flip);
      run(copy);
    }
    copy[i] = content[i];
  }
  const auto overwrite = [&](size_t position, const std::string& value) {
    if (position + value.size() > content.size()) return;
    copy.replace(position, value.size(), value);
    run(copy);
    copy.replace(position, value.size(), content, position, value.size());
  };
  for (size_t i = 0; i < content.size(); ++i) {
    for (const uint32_t value : nasty_values<uint32_t>(content.size())) overwrite(i, little_endian(value));
    for (const uint64_t value : nasty_values<uint64_t>(content.size())) overwrite(i, little_endian(value));
    run(content.substr(0, i) + content.substr(i + 1));
    run(content.substr(0, i) + content[i] + content.substr(i));
  }
  return count;
}

std::vector<std::filesystem::path> corpus(const std::string& kind) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DS4_SOURCE_DIR "/tests/fuzz/corpus/" + kind)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(HostileContainers, SeedsAreWhatTheyClaim) {
  for (const Seed& seed : gguf_seeds()) EXPECT_EQ(survive_gguf(seed.content), seed.valid) << seed.name;
  for (const Seed& seed : safetensors_seeds())
    EXPECT_EQ(survive_safetensors(seed.content), seed.valid) << seed.name;
}

TEST(HostileContainers, TheCommittedCorpusHoldsTheSeeds) {
  for (const Seed& seed : gguf_seeds()) {
    EXPECT_EQ(read_whole_file(DS4_SOURCE_DIR "/tests/fuzz/corpus/gguf/" + seed.name), seed.content)
        << seed.name;
  }
  for (const Seed& seed : safetensors_seeds()) {
    EXPECT_EQ(read_whole_file(DS4_SOURCE_DIR "/tests/fuzz/corpus/safetensors/" + seed.name), seed.content)
        << seed.name;
  }
}

// Through open(), as a user's file would come.
TEST(HostileContainers, EveryFileOfTheGgufCorpus) {
  size_t opened = 0;
  for (const auto& path : corpus("gguf")) {
    const auto file = GgufFile::open(path.string());
    if (file) {
      keep(walk(*file));
      ++opened;
    } else {
      expect_one_sentence(file.error().message, path.string());
    }
  }
  EXPECT_GE(opened, 7U);
}

TEST(HostileContainers, EveryFileOfTheSafetensorsCorpus) {
  size_t parsed = 0;
  for (const auto& path : corpus("safetensors")) {
    const std::string content = read_whole_file(path.string());
    parsed += survive_safetensors(content) ? 1 : 0;
    const auto index = parse_safetensors_index(content, "m");
    if (!index) expect_one_sentence(index.error().message, "m");
  }
  EXPECT_GE(parsed, 2U);
}

TEST(HostileContainers, DamagedGguf) {
  size_t tried = 0;
  size_t refused = 0;
  for (const Seed& seed : gguf_seeds()) {
    if (!seed.valid || seed.content.size() > 1500) continue;
    tried += damage(seed.content, [&](const std::string& file) {
      if (HasFatalFailure()) return;
      refused += survive_gguf(file) ? 0 : 1;
    });
  }
  EXPECT_GT(tried, 20000U);
  EXPECT_GT(refused, tried / 4);
}

TEST(HostileContainers, DamagedSafetensors) {
  size_t tried = 0;
  size_t refused = 0;
  for (const Seed& seed : safetensors_seeds()) {
    if (!seed.valid) continue;
    tried += damage(seed.content, [&](const std::string& file) {
      if (HasFatalFailure()) return;
      refused += survive_safetensors(file) ? 0 : 1;
    });
  }
  EXPECT_GT(tried, 5000U);
  EXPECT_GT(refused, tried / 2);
}

TEST(HostileContainers, DamagedSafetensorsIndex) {
  for (const Seed& seed : safetensors_seeds()) {
    if (!seed.name.ends_with(".json")) continue;
    damage(seed.content, [&](const std::string& file) {
      if (HasFatalFailure()) return;
      const auto index = parse_safetensors_index(file, "m");
      if (!index) expect_one_sentence(index.error().message, "m");
    });
  }
}

// A cut-off file that once was complete must never open: data would be missing.
TEST(HostileContainers, NoPrefixOfAFullFileOpens) {
  const std::string content = small_gguf().build();
  for (size_t size = 0; size < content.size(); ++size) {
    ASSERT_FALSE(survive_gguf(content.substr(0, size))) << size;
  }
}

// Comparing each name with each other would take minutes here; a table of chosen hashes can be made to.
TEST(HostileContainers, ManyNamesStayQuick) {
  GgufBytes file;
  for (int i = 0; i < 60000; ++i) {
    file.key<uint8_t>("general.a.long.common.beginning." + std::to_string(i), gguf_id::u8, 1);
    file.tensor("blk.a.long.common.beginning." + std::to_string(i), {8}, 0, 0);
  }
  file.fill(32);
  const std::clock_t start = std::clock();
  EXPECT_TRUE(survive_gguf(file.build()));
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
}

class HostileSplit : public ::testing::Test {
 protected:
  std::string write(const char* name, const GgufBytes& file) { return folder_.write(name, file.build()); }

  static GgufBytes part(int number, int count) {
    GgufBytes file;
    file.key<int32_t>("split.no", gguf_id::i32, number).key<int32_t>("split.count", gguf_id::i32, count);
    file.tensor("t" + std::to_string(number), {8}, 0, 0).fill(32);
    return file;
  }

  static void expect_refusal(const std::string& path, const std::string& file) {
    const auto opened = GgufFile::open(path);
    ASSERT_FALSE(opened) << path;
    ASSERT_TRUE(opened.error().message.starts_with(file + ": ")) << opened.error().message;
    EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
  }

  TestFolder folder_;
};

TEST_F(HostileSplit, PartsThatDoNotBelongTogether) {
  const std::string first = write("m-00001-of-00002.gguf", part(0, 2));
  const std::string second = folder_.file("m-00002-of-00002.gguf");
  expect_refusal(first, second);  // missing
  for (const auto& [number, count] : {std::pair(1, 3), {0, 2}, {2, 2}, {-1, 2}, {1, -2}}) {
    write("m-00002-of-00002.gguf", part(number, count));
    expect_refusal(first, second);
    expect_refusal(second, second);
  }
  folder_.write("m-00002-of-00002.gguf", "GG");
  expect_refusal(first, second);
  std::filesystem::remove(second);
  std::filesystem::create_directory(second);
  expect_refusal(first, second);
}

TEST_F(HostileSplit, ManyPromisedPartsCostNothing) {
  const std::string first = write("m-00001-of-99999.gguf", part(0, 99999));
  expect_refusal(first, folder_.file("m-00002-of-99999.gguf"));
}

}  // namespace
}  // namespace ds4::format
