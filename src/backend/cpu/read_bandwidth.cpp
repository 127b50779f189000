#include "backend/cpu/read_bandwidth.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/aligned_buffer.hpp"

namespace ds4::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t grain_words = 1 << 16;  // 512 KiB

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

uint64_t sum_words(ThreadPool& pool, std::span<const uint64_t> words) {
  std::atomic<uint64_t> total{0};
  pool.parallel_for(words.size(), grain_words, [&](size_t begin, size_t end, unsigned) {
    uint64_t parts[8] = {};
    size_t i = begin;
    for (; i + 8 <= end; i += 8) {
      for (size_t j = 0; j < 8; ++j) parts[j] += words[i + j];
    }
    for (; i < end; ++i) parts[0] += words[i];
    uint64_t sum = 0;
    for (const uint64_t part : parts) sum += part;
    total.fetch_add(sum, std::memory_order_relaxed);
  });
  return total;
}

size_t read_buffer_bytes(unsigned threads) {
  constexpr size_t mib = size_t{1} << 20;
  return std::clamp(threads * 64 * mib, 512 * mib, 4096 * mib);
}

double measure_read_bandwidth(ThreadPool& pool, size_t bytes) {
  constexpr int least_passes = 4;
  constexpr double wanted_seconds = 0.3;
  AlignedBuffer<uint64_t> buffer;
  buffer.grow(bytes / sizeof(uint64_t));
  // Pages come from the memory near the thread that writes them first.
  pool.parallel_for(buffer.size(), grain_words, [&](size_t begin, size_t end, unsigned) {
    for (size_t i = begin; i < end; ++i) buffer[i] = i;
  });
  const auto begin = Clock::now();
  double fastest = 0;
  uint64_t sum = 0;
  for (int pass = 0; pass < least_passes || seconds_between(begin, Clock::now()) < wanted_seconds; ++pass) {
    const auto start = Clock::now();
    sum += sum_words(pool, {buffer.data(), buffer.size()});
    const double seconds = seconds_between(start, Clock::now());
    if (seconds > 0) fastest = std::max(fastest, static_cast<double>(buffer.size() * 8) / seconds);
  }
  // The sum is used, so that no pass can be left out.
  return sum == 0 ? 0 : fastest;
}

}  // namespace ds4::cpu
