// Copies of spans of any size and alignment between the host and the device, against a loop on the host:
// every byte of a span arrives, and none beside it changes.
#include "backend/cuda/state/copy_spans.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/state/staged_copies.hpp"
#include "device_copy.hpp"

namespace ds4::cuda {
namespace {

class CopySpansTest : public DeviceTest {};

using Random = std::mt19937;

size_t between(size_t least, size_t most, Random& random) {
  return std::uniform_int_distribution<size_t>(least, most)(random);
}

std::vector<uint8_t> random_bytes(size_t count, Random& random) {
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

/// Part of device memory.
struct Range {
  size_t begin = 0, bytes = 0;
};

// Ranges that do not overlap, some of which touch, in no order.
std::vector<Range> random_ranges(size_t memory, size_t longest, Random& random) {
  std::vector<Range> ranges;
  for (size_t at = 0; at < memory;) {
    const size_t gap = random() % 3 == 0 ? 0 : between(0, 300, random);
    const size_t kinds[] = {between(1, 40, random), 68, 584, 2048, between(1, longest, random)};
    const size_t bytes = kinds[random() % std::size(kinds)];
    at += gap;
    if (at + bytes > memory) break;
    ranges.push_back({at, bytes});
    at += bytes;
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  return ranges;
}

// Staging memory with a span for each of the ranges.
struct Staged {
  PinnedBuffer<std::byte> bytes;
  PinnedBuffer<CopySpan> spans;

  Staged(const std::vector<Range>& ranges, uint8_t* device)
      : bytes(size_of(ranges, device), "test"), spans(ranges.size(), "test") {
    size_t filled = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      uint8_t* const place = device + ranges[i].begin;
      const size_t offset = staging_offset(filled, place);
      spans[i] = {place, static_cast<uint32_t>(offset), static_cast<uint32_t>(ranges[i].bytes)};
      filled = offset + ranges[i].bytes;
    }
  }
  static size_t size_of(const std::vector<Range>& ranges, const uint8_t* device) {
    size_t filled = 0;
    for (const Range& range : ranges) filled = staging_offset(filled, device + range.begin) + range.bytes;
    return (filled + copy_line_bytes - 1) / copy_line_bytes * copy_line_bytes;
  }
};

// Lengths around the unit of 16 bytes, the line of 128 and the step of 16 KiB, at every alignment.
std::vector<Range> bordering_ranges() {
  std::vector<Range> ranges;
  size_t line = 0;
  for (const size_t bytes : {1ul, 2ul, 15ul, 16ul, 17ul, 31ul, 33ul, 127ul, 128ul, 129ul, 16383ul, 16384ul,
                             16385ul, 16500ul, 40000ul}) {
    for (size_t shift = 0; shift < (bytes > 1000 ? 18 : copy_line_bytes); ++shift) {
      ranges.push_back({line + shift, bytes});
      line += (shift + bytes) / copy_line_bytes * copy_line_bytes + copy_line_bytes;
    }
  }
  return ranges;
}

void check_scatter(const std::vector<Range>& ranges, size_t memory, Random& random) {
  std::vector<uint8_t> expected = random_bytes(memory, random);
  const DeviceCopy<uint8_t> device(expected);
  const Staged staged(ranges, device.data());
  const std::vector<uint8_t> content = random_bytes(staged.bytes.size(), random);
  std::memcpy(staged.bytes.data(), content.data(), content.size());
  for (size_t i = 0; i < ranges.size(); ++i) {
    std::memcpy(expected.data() + ranges[i].begin, content.data() + staged.spans[i].offset, ranges[i].bytes);
  }
  require(scatter_spans(staged.bytes.data(), staged.spans.data(), ranges.size(), nullptr));
  require(cudaDeviceSynchronize());
  EXPECT_TRUE(device.read() == expected);
  EXPECT_EQ(std::memcmp(staged.bytes.data(), content.data(), content.size()), 0);
}

void check_gather(const std::vector<Range>& ranges, size_t memory, Random& random) {
  const std::vector<uint8_t> content = random_bytes(memory, random);
  const DeviceCopy<uint8_t> device(content);
  const Staged staged(ranges, device.data());
  std::memset(staged.bytes.data(), 0xaa, staged.bytes.size());
  require(gather_spans(staged.bytes.data(), staged.spans.data(), ranges.size(), nullptr));
  require(cudaDeviceSynchronize());
  size_t wrong = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    wrong += std::memcmp(staged.bytes.data() + staged.spans[i].offset, content.data() + ranges[i].begin,
                         ranges[i].bytes) != 0;
  }
  EXPECT_EQ(wrong, 0u) << "spans of " << ranges.size();
  EXPECT_TRUE(device.read() == content);
}

TEST_F(CopySpansTest, BordersOfUnitsLinesAndSteps) {
  Random random(1);
  const std::vector<Range> ranges = bordering_ranges();
  const size_t memory = ranges.back().begin + ranges.back().bytes;
  check_scatter(ranges, memory, random);
  check_gather(ranges, memory, random);
}

TEST_F(CopySpansTest, RandomSpans) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const size_t memory = between(1, 2000000, random);
    const std::vector<Range> ranges = random_ranges(memory, 50000, random);
    check_scatter(ranges, memory, random);
    check_gather(ranges, memory, random);
  }
}

TEST_F(CopySpansTest, NoSpans) {
  require(scatter_spans(nullptr, nullptr, 0, nullptr));
  require(gather_spans(nullptr, nullptr, 0, nullptr));
  require(cudaDeviceSynchronize());
}

// More than the staging memory and its table hold, with zeros in between, several times over with one object.
TEST_F(CopySpansTest, StagedCopiesOfAnySize) {
  StagedCopies copies;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Random random(100 + seed);
    const size_t memory = between(1, 6000000, random);
    std::vector<uint8_t> expected = random_bytes(memory, random);
    const DeviceCopy<uint8_t> device(expected);
    // Short ones only in some rounds, so that the table is full before the bytes are.
    std::vector<DeviceSpan> spans;
    size_t total = 0;
    for (const Range& range : random_ranges(memory, seed % 3 == 0 ? 100 : 400000, random)) {
      spans.push_back({device.data() + range.begin, range.bytes});
      if (random() % 50 == 0) spans.push_back({nullptr, between(1, 3000, random)});
    }
    for (const DeviceSpan& span : spans) total += span.bytes;
    const std::vector<uint8_t> bytes = random_bytes(total, random);
    std::vector<uint8_t> exported = bytes;  // with zeros where there is no memory
    size_t at = 0;
    for (const DeviceSpan& span : spans) {
      if (span.device == nullptr) {
        std::memset(exported.data() + at, 0, span.bytes);
      } else {
        std::memcpy(expected.data() + (span.device - device.data()), bytes.data() + at, span.bytes);
      }
      at += span.bytes;
    }
    copies.to_device(spans, reinterpret_cast<const std::byte*>(bytes.data()));
    EXPECT_TRUE(device.read() == expected);
    std::vector<uint8_t> out(total, 0xaa);
    copies.to_host(spans, reinterpret_cast<std::byte*>(out.data()));
    EXPECT_TRUE(out == exported);
  }
}

}  // namespace
}  // namespace ds4::cuda
