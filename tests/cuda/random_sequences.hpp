// Sequences with random caches, on the device and on the host, and passes over their rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <vector>

#include "backend/cuda/device_types.hpp"
#include "device_copy.hpp"

namespace ds4::cuda {

/// The caches of one layer of one sequence whose last row is at `position`. The layer is number 1 of two.
class RandomSequence {
 public:
  RandomSequence(uint64_t position, uint32_t ratio, std::mt19937& random);

  const LayerCache* layers() const { return caches_.data(); }
  uint64_t position() const { return position_; }
  /// Decoded values of a raw row, a compressed row, an index row.
  std::vector<float> raw_row(uint64_t position) const;
  std::vector<float> compressed_row(size_t row) const;
  std::vector<float> index_row(size_t row) const;

 private:
  uint64_t position_;
  std::vector<uint8_t> ring_, compressed_, index_;
  std::deque<DeviceCopy<uint8_t>> device_;
  std::deque<DeviceCopy<uint8_t*>> tables_;
  DeviceCopy<LayerCache> caches_;
};

/// One row of a pass: a sequence and a position in it.
struct PassRow {
  const RandomSequence* sequence;
  uint64_t position;
};

/// Rows as the kernels read them; rows of one sequence must follow each other.
DeviceCopy<RowInfo> make_rows(const std::vector<PassRow>& rows);

std::vector<float> random_values(size_t count, float spread, std::mt19937& random);

/// Scores that are hard to choose from: equal ones, both zeros, NaN and infinities, close ones, sorted ones.
std::vector<std::vector<float>> hard_scores(size_t visible, std::mt19937& random);

}  // namespace ds4::cuda
