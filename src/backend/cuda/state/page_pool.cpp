#include "backend/cuda/state/page_pool.hpp"

#include <algorithm>
#include <utility>

#include "backend/cuda/device_types.hpp"

namespace ds4::cuda {
namespace {

constexpr size_t usual_slab_bytes = size_t{8} << 20;
constexpr size_t alignment_bytes = 256;

}  // namespace

std::shared_ptr<uint8_t> PagePool::take() {
  uint8_t* page = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) grow();
    page = free_.back();
    free_.pop_back();
  }
  // Should there be no memory for the owner's record, this gives the page back.
  return {page, [pool = shared_from_this()](uint8_t* returned) { pool->give_back(returned); }};
}

void PagePool::reserve(size_t count) {
  const std::lock_guard lock(mutex_);
  while (free_.size() < count) grow();
}

void PagePool::grow() {
  const size_t pages = slab_bytes() / stride();
  // All pages may be free at once, and giving one back must not need memory.
  free_.reserve((slabs_.size() + 1) * pages);
  slabs_.emplace_back(slab_bytes(), "pages of cached rows");
  for (size_t i = 0; i < pages; ++i) free_.push_back(slabs_.back().data() + i * stride());
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
  const auto writable = [this](size_t page) { return page < pages_.size() && !pages_[page].shared; };
  std::vector<std::shared_ptr<uint8_t>> fresh;
  for (size_t page = first; page < last; ++page) {
    if (!writable(page)) fresh.push_back(pool_->take());
  }
  if (fresh.empty()) return;
  std::vector<uint8_t*> addresses;
  addresses.reserve(last - first);
  if (pages_.capacity() < last) pages_.reserve(std::max(last, 2 * pages_.capacity()));
  // From here on nothing runs out of memory.
  auto next = fresh.begin();
  for (size_t page = first; page < last; ++page) {
    if (page >= pages_.size()) {
      pages_.push_back({std::move(*next++), false});
    } else if (pages_[page].shared) {
      const size_t rows = page == first ? begin % rows_per_page : 0;
      check(cudaMemcpyAsync(next->get(), pages_[page].data.get(), rows * row_bytes_, cudaMemcpyDeviceToDevice,
                            stream),
            "copy of a shared page");
      // The old page goes when its copy is done: other streams may take what returns to the pool.
      std::swap(pages_[page].data, *next++);
      pages_[page].shared = false;
    }
    addresses.push_back(pages_[page].data.get());
  }
  check(cudaMemcpyAsync(static_cast<void*>(table + first), static_cast<const void*>(addresses.data()),
                        addresses.size() * sizeof(uint8_t*), cudaMemcpyHostToDevice, stream),
        "page table");
  check(cudaStreamSynchronize(stream), "page table");
}

void RowTable::extend(size_t count) {
  while (pages_.size() * rows_per_page < count) pages_.push_back({pool_->take(), false});
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
