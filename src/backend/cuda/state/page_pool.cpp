#include "backend/cuda/state/page_pool.hpp"

#include <algorithm>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {
namespace {

constexpr size_t usual_slab_bytes = size_t{8} << 20;
constexpr size_t alignment_bytes = 256;

}  // namespace

std::shared_ptr<uint8_t> PagePool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    slabs_.emplace_back(slab_bytes(), "pages of cached rows");
    for (size_t offset = 0; offset + stride() <= slab_bytes(); offset += stride()) {
      free_.push_back(slabs_.back().data() + offset);
    }
  }
  uint8_t* page = free_.back();
  free_.pop_back();
  return {page, [pool = shared_from_this()](uint8_t* returned) { pool->give_back(returned); }};
}

size_t PagePool::stride() const {
  return (page_bytes_ + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

size_t PagePool::slab_bytes() const {
  return std::max(usual_slab_bytes, stride());
}

void PagePool::give_back(uint8_t* page) {
  const std::lock_guard lock(mutex_);
  free_.push_back(page);
}

void RowTable::prepare(size_t begin, size_t count, uint8_t** table, cudaStream_t stream) {
  const size_t first = begin / rows_per_page, last = (count + rows_per_page - 1) / rows_per_page;
  std::vector<uint8_t*> addresses;
  bool changed = false;
  for (size_t page = first; page < last; ++page) {
    if (page >= pages_.size() || pages_[page].shared) {
      std::shared_ptr<uint8_t> fresh = pool_->take();
      if (page < pages_.size()) {
        const size_t rows = page == first ? begin % rows_per_page : 0;
        check(cudaMemcpyAsync(fresh.get(), pages_[page].data.get(), rows * row_bytes_,
                              cudaMemcpyDeviceToDevice, stream),
              "copy of a shared page");
        pages_[page] = {std::move(fresh), false};
      } else {
        pages_.push_back({std::move(fresh), false});
      }
      changed = true;
    }
    addresses.push_back(pages_[page].data.get());
  }
  if (!changed) return;
  check(cudaMemcpyAsync(static_cast<void*>(table + first), static_cast<const void*>(addresses.data()),
                        addresses.size() * sizeof(uint8_t*), cudaMemcpyHostToDevice, stream),
        "page table");
  check(cudaStreamSynchronize(stream), "page table");
}

void RowTable::publish(size_t count, uint8_t** table, cudaStream_t stream) {
  pages_.resize((count + rows_per_page - 1) / rows_per_page);
  std::vector<uint8_t*> addresses;
  addresses.reserve(pages_.size());
  for (const Page& page : pages_) addresses.push_back(page.data.get());
  if (addresses.empty()) return;
  check(cudaMemcpyAsync(static_cast<void*>(table), static_cast<const void*>(addresses.data()),
                        addresses.size() * sizeof(uint8_t*), cudaMemcpyHostToDevice, stream),
        "page table");
  check(cudaStreamSynchronize(stream), "page table");
}

void RowTable::mark_shared() const {
  for (Page& page : pages_) page.shared = true;
}

}  // namespace ds4::cuda
