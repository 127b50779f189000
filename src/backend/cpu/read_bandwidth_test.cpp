#include "backend/cpu/read_bandwidth.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace ds4::cpu {
namespace {

TEST(ReadBandwidth, EveryWordIsRead) {
  ThreadPool pool(3);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{65536}, size_t{200003}}) {
    std::vector<uint64_t> words(count);
    std::iota(words.begin(), words.end(), 1);
    EXPECT_EQ(sum_words(pool, words), count * (count + 1) / 2) << count;
  }
}

TEST(ReadBandwidth, IsPlausible) {
  ThreadPool pool(2);
  const double rate = measure_read_bandwidth(pool, size_t{64} << 20);
  EXPECT_GT(rate, 1e8);   // a tenth of one DDR2 channel
  EXPECT_LT(rate, 1e14);  // more than any machine has
}

TEST(ReadBandwidth, TheBufferGrowsWithTheThreads) {
  constexpr size_t mib = size_t{1} << 20;
  EXPECT_EQ(read_buffer_bytes(1), 512 * mib);
  EXPECT_EQ(read_buffer_bytes(16), 1024 * mib);
  EXPECT_EQ(read_buffer_bytes(1000), 4096 * mib);
}

}  // namespace
}  // namespace ds4::cpu
