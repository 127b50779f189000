// What the disk store costs with states as large as Flash's: bytes written for a conversation that grows from
// 1k to 9k tokens in 16 turns, and the speed of writing and reading. Usage: ds4_store_bench FOLDER [TOKENS]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "store/state_store.hpp"

namespace {

using namespace ds4;
using namespace ds4::store;
using Clock = std::chrono::steady_clock;

constexpr size_t block_tokens = 128;
constexpr uint64_t block_bytes = 449824;

// docs/formats.md §11 for Flash without a drafter: windows, tails, compressors, logits.
uint64_t frontier_bytes(uint64_t position) {
  const uint64_t row = 584, index_row = 68, window = std::min<uint64_t>(position, 128), tail = position % 128;
  const uint64_t from = position / 4 * 4 >= 4 ? position / 4 * 4 - 4 : 0;
  const uint64_t quarter =
      window * row + tail / 4 * (row + index_row) + (position - from) * 2 * 4 * (1024 + 256);
  const uint64_t sparse = window * row + tail * 2 * 4 * 512;
  return 2 * window * row + 21 * quarter + 20 * sparse + 129280 * 4;
}

class MadeState : public StateSource, public StateSink {
 public:
  explicit MadeState(size_t length) : tokens_(length), noise_(1 << 20) {
    for (size_t i = 0; i < length; ++i) tokens_[i] = static_cast<Token>(i * 7919 % 129280);
    uint64_t state = 1;
    for (std::byte& byte : noise_)
      byte = static_cast<std::byte>((state = state * 6364136223846793005u + 1) >> 56);
  }
  std::span<const Token> tokens() const override { return tokens_; }
  Result<void> export_block(size_t block, std::span<std::byte> out) const override {
    std::memcpy(out.data(), noise_.data() + block % 1024, out.size());
    return {};
  }
  Result<void> export_frontier(std::span<std::byte> out) const override {
    for (size_t at = 0; at < out.size(); at += noise_.size()) {
      std::memcpy(out.data() + at, noise_.data(), std::min(noise_.size(), out.size() - at));
    }
    return {};
  }
  Result<void> add_block(std::span<const std::byte> bytes) override {
    std::memcpy(noise_.data(), bytes.data(), bytes.size());
    return {};
  }
  Result<void> add_frontier(std::span<const std::byte>) override { return {}; }

 private:
  std::vector<Token> tokens_;
  std::vector<std::byte> noise_;
};

template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print(stderr, "{}\n", result.error().message);
  std::exit(1);
}

std::unique_ptr<StateStore> open(const std::string& folder) {
  StateStoreOptions options;
  options.directory.directory = folder;
  options.directory.budget_bytes = uint64_t{64} << 30;
  options.fingerprint = "00112233445566778899aabbccddeeff";
  options.block_bytes = block_bytes;
  options.frontier_bytes = frontier_bytes;
  return must(StateStore::open(options));
}

uint64_t folder_bytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  return bytes;
}

/// The system forgets what it has in memory of the files.
void forget_pages(const std::string& folder) {
  sync();
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

void print_growth(const std::string& folder, const char* what, uint64_t (*turn_end)(uint64_t)) {
  std::filesystem::remove_all(folder);
  auto store = open(folder);
  uint64_t written = 0;
  for (uint64_t turn = 0; turn <= 16; ++turn) {
    written += must(store->write(MadeState(turn_end(1000 + turn * 500)), {.reason = SaveReason::turn}))
                   .bytes_written;
  }
  const uint64_t rows = turn_end(9000) / block_tokens * block_bytes;
  const uint64_t left = folder_bytes(folder);
  fmt::print(
      "1k to 9k tokens in 16 turns, {}: {:.1f} MB written, {:.1f} MB rows, {:.1f} MB kept: {:.2f} x of what "
      "is kept\n",
      what, written / 1e6, rows / 1e6, left / 1e6, static_cast<double>(written) / static_cast<double>(left));
}

void print_speed(const std::string& folder, size_t length) {
  std::filesystem::remove_all(folder);
  auto store = open(folder);
  MadeState state(length);
  const WriteReport report = must(store->write(state, {}));
  fmt::print("{} tokens written: {:.1f} MB, {:.2f} GB/s with fsync\n", length, report.bytes_written / 1e6,
             report.bytes_written / report.seconds / 1e9);
  for (const bool cold : {true, false, false}) {
    if (cold) forget_pages(folder);
    const auto begin = Clock::now();
    const auto match = store->find({.tokens = state.tokens()});
    if (!match) std::exit(1);
    const auto found = Clock::now();
    must(store->read(*match, state).has_value() ? Result<int>(0)
                                                : Result<int>(Error{ErrorCode::io, "unreadable"}));
    const double seconds = std::chrono::duration<double>(Clock::now() - found).count();
    fmt::print("{}: found in {:.2f} ms, read in {:.1f} ms, {:.2f} GB/s\n",
               cold ? "from the disk" : "from memory",
               std::chrono::duration<double>(found - begin).count() * 1e3, seconds * 1e3,
               report.bytes_written / seconds / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} FOLDER [TOKENS]\n", argv[0]);
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/ds4-store-bench";
  print_growth(folder, "at any length", [](uint64_t tokens) { return tokens + tokens % 97; });
  print_growth(folder, "at multiples of 128", [](uint64_t tokens) { return tokens / 128 * 128; });
  print_speed(folder, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 30000);
  std::filesystem::remove_all(folder);
  return 0;
}
