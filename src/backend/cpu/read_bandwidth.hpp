// How fast the processors can read memory: what any product with one token is measured against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/thread_pool.hpp"

namespace ds4::cpu {

/// Reads all words with all threads and returns their sum.
uint64_t sum_words(ThreadPool& pool, std::span<const uint64_t> words);

/// Far more than the caches: 64 MiB for each thread, 512 MiB at least, 4 GiB at most.
size_t read_buffer_bytes(unsigned threads);

/// Bytes per second of the fastest of several passes over a buffer of `bytes` (at least 8). Takes about half
/// a second. Throws std::bad_alloc.
double measure_read_bandwidth(ThreadPool& pool, size_t bytes);

}  // namespace ds4::cpu
