#include "engine/fingerprint.hpp"

// In line: programs that are carried to another machine need no library for it.
#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include "ds4/state.hpp"

namespace ds4 {
namespace {

constexpr uint64_t sample_bytes = 4096;

class Digest {
 public:
  Digest() : state_(XXH3_createState()) {
    if (state_ == nullptr) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }

  template <class Number>
    requires(std::is_arithmetic_v<Number> || std::is_enum_v<Number>)
  void add(Number value) {
    XXH3_128bits_update(state_.get(), &value, sizeof(value));
  }
  /// With its length, which keeps neighbours apart.
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  void add(std::span<const std::byte> bytes) {
    add(uint64_t{bytes.size()});
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

void add_value(Digest& digest, const format::GgufValue& value) {
  digest.add(value.type);
  std::visit(
      [&](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, format::GgufArray>) {
          digest.add(held.element_type);
          digest.add(held.count);
          digest.add(held.bytes);
          for (const std::string_view text : held.strings) digest.add(text);
        } else {
          digest.add(held);
        }
      },
      value.value);
}

void add_samples(Digest& digest, const format::GgufTensor& tensor) {
  const uint64_t size = tensor.size_bytes, length = std::min(size, sample_bytes);
  for (const uint64_t begin : {uint64_t{0}, (size - length) / 2, size - length}) {
    digest.add(std::span(tensor.data + begin, static_cast<size_t>(length)));
  }
}

void add_file(Digest& digest, const format::GgufFile& file) {
  digest.add(uint64_t{file.metadata().size()});
  for (const auto& [key, value] : file.metadata()) {
    digest.add(key);
    add_value(digest, value);
  }
  digest.add(uint64_t{file.tensors().size()});
  for (const format::GgufTensor& tensor : file.tensors()) {
    digest.add(tensor.name);
    digest.add(tensor.type);
    for (const uint64_t dim : tensor.dims) digest.add(dim);
    add_samples(digest, tensor);
  }
}

}  // namespace

std::string fingerprint(const FingerprintSource& source) {
  Digest digest;
  digest.add(state_layout_version);
  add_file(digest, source.model);
  digest.add(source.drafter);
  if (source.drafter_file != nullptr) add_file(digest, *source.drafter_file);
  digest.add(std::string_view(source.steering));
  digest.add(source.exact_activations);
  return digest.text();
}

std::string digest_directions(const SteeringDirections& directions) {
  if (directions.values.empty()) return {};
  Digest digest;
  digest.add(std::as_bytes(std::span(directions.values)));
  return digest.text();
}

}  // namespace ds4
