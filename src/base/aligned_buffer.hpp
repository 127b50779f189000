// Uninitialised, cache-line aligned array of trivial elements.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace ds4 {

/// Grows without keeping its content. Alignment is 64 bytes; size is in elements.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) { ensure(size); }

  /// Makes room for at least `size` elements and returns data(). Throws std::bad_alloc, which the callers at
  /// the edge of the library turn into an Error.
  T* grow(size_t size) {
    if (!ensure(size)) throw std::bad_alloc();
    return data();
  }

  /// Makes room for at least `size` elements. False if memory is exhausted.
  bool ensure(size_t size) {
    if (size <= size_) return true;
    const size_t bytes = (size * sizeof(T) + 63) / 64 * 64;
    if (bytes / sizeof(T) < size) return false;
    std::unique_ptr<T, Free> fresh(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (!fresh) return false;
    data_ = std::move(fresh);
    size_ = size;
    return true;
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_.get()[i]; }
  const T& operator[](size_t i) const { return data_.get()[i]; }
  std::span<T> span() { return {data(), size_}; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace ds4
