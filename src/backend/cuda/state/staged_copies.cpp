#include "backend/cuda/state/staged_copies.hpp"

#include <algorithm>
#include <cstring>

namespace ds4::cuda {
namespace {

// Of a half: a block of Flash with its lines fits, and larger states are copied in several turns.
constexpr size_t half_bytes = size_t{512} << 10, half_spans = 512;
static_assert(half_bytes % copy_line_bytes == 0);

}  // namespace

StagedCopies::Half::Half() : bytes(half_bytes, "copies of states"), spans(half_spans, "copies of states") {
  targets.reserve(half_spans);
}

std::span<std::byte> StagedCopies::Half::take(const DeviceSpan& span, size_t begin) {
  uint8_t* const device = span.device + begin;
  const size_t offset = staging_offset(filled, device);
  if (count == spans.size() || offset >= bytes.size()) return {};
  // What is left of the span begins with a line then.
  const size_t at_once = copy_step_bytes - offset % copy_line_bytes;
  const size_t size = std::min({span.bytes - begin, at_once, bytes.size() - offset});
  spans[count++] = {device, static_cast<uint32_t>(offset), static_cast<uint32_t>(size)};
  filled = offset + size;
  return {bytes.data() + offset, size};
}

void StagedCopies::Half::clear() {
  targets.clear();
  filled = count = 0;
}

void StagedCopies::Half::unload() {
  for (size_t i = 0; i < targets.size(); ++i) {
    std::memcpy(targets[i], bytes.data() + spans[i].offset, spans[i].bytes);
  }
  clear();
}

StagedCopies::StagedCopies() = default;

StagedCopies::Half& StagedCopies::next() {
  turn_ = 1 - turn_;
  check(cudaEventSynchronize(halves_[turn_].done.get()), "copies of states");
  return halves_[turn_];
}

void StagedCopies::scatter(const Half& half) {
  check(scatter_spans(half.bytes.data(), half.spans.data(), half.count, stream()), "imported state");
  check(cudaEventRecord(half.done.get(), stream()), "imported state");
}

void StagedCopies::gather(const Half& half) {
  check(gather_spans(half.bytes.data(), half.spans.data(), half.count, stream()), "exported state");
  check(cudaEventRecord(half.done.get(), stream()), "exported state");
}

void StagedCopies::to_device(const std::vector<DeviceSpan>& spans, const std::byte* bytes) {
  for (size_t i = 0; i < halves_.size(); ++i) next().clear();  // also of a call that failed
  Half* half = &halves_[turn_];
  for (const DeviceSpan& span : spans) {
    if (span.device == nullptr) {
      bytes += span.bytes;
      continue;
    }
    for (size_t copied = 0; copied < span.bytes;) {
      const auto room = half->take(span, copied);
      if (room.empty()) {
        scatter(*half);
        half = &next();
        half->clear();
        continue;
      }
      std::memcpy(room.data(), bytes, room.size());
      bytes += room.size();
      copied += room.size();
    }
  }
  scatter(*half);
  for (size_t i = 0; i < halves_.size(); ++i) next();
}

void StagedCopies::to_host(const std::vector<DeviceSpan>& spans, std::byte* out) {
  for (size_t i = 0; i < halves_.size(); ++i) next().clear();
  Half* half = &halves_[turn_];
  for (const DeviceSpan& span : spans) {
    if (span.device == nullptr) {
      std::memset(out, 0, span.bytes);
      out += span.bytes;
      continue;
    }
    for (size_t copied = 0; copied < span.bytes;) {
      const auto room = half->take(span, copied);
      if (room.empty()) {
        gather(*half);
        half = &next();
        half->unload();
        continue;
      }
      half->targets.push_back(out);
      out += room.size();
      copied += room.size();
    }
  }
  gather(*half);
  for (size_t i = 0; i < halves_.size(); ++i) next().unload();
}

}  // namespace ds4::cuda
