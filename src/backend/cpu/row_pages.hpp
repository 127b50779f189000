// Append-only store of fixed-size rows in pages that copies share.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace ds4::cpu {

/// Rows of `row_bytes`, 64 to a page. Copying is cheap: both copies refer to the same pages, and the first
/// one to append to a shared page takes its own copy of that page. Pages appear as rows do.
class RowPages {
 public:
  static constexpr size_t rows_per_page = 64;

  explicit RowPages(size_t row_bytes = 0) : row_bytes_(row_bytes) {}
  RowPages(const RowPages& other) : row_bytes_(other.row_bytes_), count_(other.count_), pages_(other.pages_) {
    other.mark_shared();
    mark_shared();
  }
  RowPages& operator=(const RowPages& other) {
    if (this != &other) *this = RowPages(other);
    return *this;
  }
  RowPages(RowPages&&) noexcept = default;
  RowPages& operator=(RowPages&&) noexcept = default;

  size_t row_bytes() const { return row_bytes_; }
  size_t size() const { return count_; }
  size_t memory_bytes() const { return pages_.size() * rows_per_page * row_bytes_; }

  const std::byte* operator[](size_t row) const {
    return pages_[row / rows_per_page].data.get() + row % rows_per_page * row_bytes_;
  }

  void append(const std::byte* row) {
    const size_t page = count_ / rows_per_page;
    if (page == pages_.size()) pages_.push_back({allocate(), false});
    if (pages_[page].shared) own(page);
    std::memcpy(pages_[page].data.get() + count_ % rows_per_page * row_bytes_, row, row_bytes_);
    ++count_;
  }

  /// Forgets all rows from `count` on. Precondition: count <= size().
  void truncate(size_t count) {
    count_ = count;
    pages_.resize((count + rows_per_page - 1) / rows_per_page);
  }

 private:
  struct Page {
    std::shared_ptr<std::byte[]> data;
    bool shared = false;  // some copy may refer to it: never written again by this object
  };

  std::shared_ptr<std::byte[]> allocate() const {
    return std::shared_ptr<std::byte[]>(new std::byte[rows_per_page * row_bytes_]);
  }
  void own(size_t page) {
    std::shared_ptr<std::byte[]> fresh = allocate();
    std::memcpy(fresh.get(), pages_[page].data.get(), count_ % rows_per_page * row_bytes_);
    pages_[page] = {std::move(fresh), false};
  }
  // Sharing is a fact about the pages, not about the rows: copying a const store is still a read of its rows.
  void mark_shared() const {
    for (Page& page : pages_) {
      if (!page.shared) page.shared = true;  // no write once shared: copies may be made from several threads
    }
  }

  size_t row_bytes_;
  size_t count_ = 0;
  mutable std::vector<Page> pages_;
};

}  // namespace ds4::cpu
