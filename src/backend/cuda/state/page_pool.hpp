// Device memory for cached rows, handed out in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/device/device_buffer.hpp"
#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {

/// Pages of one size, aligned to 256 bytes, carved from slabs that are never given back while the pool lives.
/// Safe from several threads: snapshots may be dropped anywhere.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  explicit PagePool(size_t page_bytes) : page_bytes_(page_bytes) {}

  /// A page that returns to the pool when its last owner lets go. Throws CudaFailure when memory is
  /// exhausted.
  std::shared_ptr<uint8_t> take();
  /// Makes the next `count` pages that are taken be there already. Throws CudaFailure.
  void reserve(size_t count);
  size_t page_bytes() const { return page_bytes_; }
  /// What the pool grows by.
  size_t slab_bytes() const;

 private:
  size_t stride() const;
  void grow();
  void give_back(uint8_t* page);

  const size_t page_bytes_;
  mutable std::mutex mutex_;
  std::vector<DeviceBuffer<uint8_t>> slabs_;
  std::vector<uint8_t*> free_;
};

/// The pages of one kind of row of one layer of one sequence, with the device's table of their addresses.
/// Copies share pages; a page that may be shared is copied before a row is added to it.
class RowTable {
 public:
  RowTable(std::shared_ptr<PagePool> pool, size_t row_bytes)
      : pool_(std::move(pool)), row_bytes_(row_bytes) {}

  /// Makes rows [0, count) writable from `begin` on; writes changed addresses to `table` (device memory, room
  /// for all pages). Rows before `begin` stay as they are. Without memory the table is as before.
  void prepare(size_t begin, size_t count, uint8_t** table, cudaStream_t stream);
  /// Pages for rows [0, count) of a table that shares none; publish() writes their addresses. Throws
  /// CudaFailure.
  void extend(size_t count);
  /// Device memory. Precondition: a page has the row.
  uint8_t* row(size_t index) const {
    return pages_[index / rows_per_page].data.get() + index % rows_per_page * row_bytes_;
  }
  /// Forgets rows from `count` on, and writes the whole table again (after a copy from another sequence).
  void publish(size_t count, uint8_t** table, cudaStream_t stream);
  /// Forgets all rows; the device's table is not looked at before rows are prepared.
  void clear() { pages_.clear(); }
  /// Pages may now be referred to by a copy.
  void mark_shared() const;
  size_t memory_bytes() const { return pages_.size() * pool_->page_bytes(); }

 private:
  struct Page {
    std::shared_ptr<uint8_t> data;
    bool shared = false;
  };
  std::shared_ptr<PagePool> pool_;
  size_t row_bytes_;
  mutable std::vector<Page> pages_;  // sharing is a fact about the pages, not about the rows
};

}  // namespace ds4::cuda
