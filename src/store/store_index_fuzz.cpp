// libFuzzer: a store whose index has any values in its rows, or any bytes in its file. What is read must be
// what was written, and a new index must put everything right. Seeds: tests/fuzz/corpus/store_index.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "store/sqlite.hpp"
#include "store/state_store.hpp"

namespace {

using namespace ds4;
using namespace ds4::store;
namespace fs = std::filesystem;

constexpr size_t block_tokens = 4, block_bytes = 16, frontier_bytes = 24;

void fill(std::span<std::byte> out, std::span<const Token> tokens) {
  const Hash128 hash = hash_of(std::as_bytes(tokens));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(hash.bytes[i % 16] + i / 16);
}

class State : public StateSource, public StateSink {
 public:
  explicit State(size_t length, Token first) {
    for (size_t i = 0; i < length; ++i) tokens_.push_back(first + static_cast<Token>(i));
  }
  std::span<const Token> tokens() const override { return tokens_; }
  Result<void> export_block(size_t block, std::span<std::byte> out) const override {
    fill(out, std::span(tokens_).first((block + 1) * block_tokens));
    return {};
  }
  Result<void> export_frontier(std::span<std::byte> out) const override {
    fill(out, tokens_);
    return {};
  }
  Result<void> add_block(std::span<const std::byte> bytes) override {
    if (bytes.size() != block_bytes || blocks_ >= tokens_.size() / block_tokens) std::abort();
    compare(bytes, std::span(tokens_).first(++blocks_ * block_tokens));
    return {};
  }
  Result<void> add_frontier(std::span<const std::byte> bytes) override {
    if (bytes.size() != frontier_bytes || blocks_ != tokens_.size() / block_tokens) std::abort();
    compare(bytes, tokens_);
    return {};
  }

 private:
  static void compare(std::span<const std::byte> bytes, std::span<const Token> tokens) {
    std::vector<std::byte> expected(bytes.size());
    fill(expected, tokens);
    if (std::memcmp(bytes.data(), expected.data(), bytes.size()) != 0) std::abort();
  }
  std::vector<Token> tokens_;
  size_t blocks_ = 0;
};

StateStoreOptions options(const std::string& folder) {
  StateStoreOptions options;
  options.directory.directory = folder;
  options.directory.clock = [] { return int64_t{1000}; };
  options.fingerprint = "00112233445566778899aabbccddeeff";
  options.block_tokens = block_tokens;
  options.block_bytes = block_bytes;
  options.frontier_bytes = [](uint64_t) { return uint64_t{frontier_bytes}; };
  options.policy = {.min_tokens = 2};
  options.min_growth_tokens = 1;
  return options;
}

const std::vector<std::pair<size_t, Token>>& texts() {
  static const std::vector<std::pair<size_t, Token>> all{{10, 0}, {40, 0}, {13, 500}};
  return all;
}

/// A filled store, made once; every input gets a copy.
struct Folders {
  Folders() {
    const fs::path base = fs::exists("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
    const std::string path = (base / ("ds4-fuzz-" + std::to_string(getpid()))).string();
    original = path + "-original";
    copy = path + "-copy";
    fs::remove_all(original);
    auto store = StateStore::open(options(original));
    if (!store) std::abort();
    for (const auto& [length, first] : texts()) {
      if (!(*store)->write(State(length, first), {})) std::abort();
    }
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;
  ~Folders() {
    fs::remove_all(original);
    fs::remove_all(copy);
  }
  std::string original, copy;
};

void use(StateStore& store, bool expect_all) {
  for (const auto& [length, first] : texts()) {
    const State prompt(length, first);
    const auto match = store.find({.tokens = prompt.tokens()});
    bool read = false;
    if (match) {
      State sink(match->position, first);
      read = store.read(*match, sink).has_value();
    }
    if (expect_all && (!read || match->position != length)) std::abort();
  }
}

/// Sets one value of one row: column, row and value come from the input.
void change_row(const std::string& folder, const uint8_t* data, size_t size) {
  static constexpr const char* columns[][2] = {{"segments", "name"},          {"segments", "fingerprint"},
                                               {"segments", "parent_hash"},   {"segments", "parent"},
                                               {"segments", "first_block"},   {"segments", "block_tokens"},
                                               {"segments", "blocks"},        {"segments", "file_bytes"},
                                               {"segments", "tokens"},        {"blocks", "hash"},
                                               {"blocks", "segment"},         {"blocks", "slot"},
                                               {"frontiers", "key"},          {"frontiers", "fingerprint"},
                                               {"frontiers", "base"},         {"frontiers", "segment"},
                                               {"frontiers", "parent"},       {"frontiers", "position"},
                                               {"frontiers", "block_tokens"}, {"frontiers", "file_bytes"},
                                               {"frontiers", "hits"},         {"frontiers", "used"},
                                               {"frontiers", "reason"},       {"frontiers", "tail"}};
  auto database = Database::open(folder + "/index.sqlite");
  if (!database || size < 4) return;
  const auto& [table, column] = columns[data[0] % std::size(columns)];
  std::string value = "x'";
  constexpr char digits[] = "0123456789abcdef";
  if (data[2] % 2 == 0) {
    for (size_t i = 3; i < size; ++i) {
      value += digits[data[i] >> 4];
      value += digits[data[i] & 15];
    }
    value += "'";
  } else {
    int64_t number = 0;
    std::memcpy(&number, data + 3, std::min<size_t>(8, size - 3));
    value = std::to_string(number);
  }
  const std::string row = std::string("(SELECT ") + column + " FROM " + table + " LIMIT 1 OFFSET " +
                          std::to_string(data[1] % 5) + ")";
  const std::string sql = std::string("UPDATE OR IGNORE ") + table + " SET " + column + "=" + value +
                          " WHERE " + column + "=" + row;
  (void)database->execute(sql.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4 || size > 65536) return 0;
  static const Folders folders;
  const std::string& folder = folders.copy;
  fs::remove_all(folder);
  fs::copy(folders.original, folder, fs::copy_options::recursive);
  if (data[0] % 8 == 7) {
    fs::remove(folder + "/index.sqlite-wal");
    fs::remove(folder + "/index.sqlite-shm");
    std::ofstream(folder + "/index.sqlite", std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data + 1), static_cast<std::streamsize>(size - 1));
  } else {
    change_row(folder, data + 1, size - 1);
  }
  auto store = StateStore::open(options(folder));
  if (!store) std::abort();
  use(**store, false);
  for (const auto& [length, first] : texts()) {
    if (!(*store)->write(State(length, first), {.forced = true})) std::abort();
  }
  use(**store, true);
  return 0;
}
