#include "fingerprint.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "base/mapped_file.hpp"

namespace ds4::quantize {
namespace {

constexpr size_t leading_bytes = 256;
constexpr size_t chunk_bytes = size_t{16} << 20;

void add_begin(ContentHash& hash, std::span<const std::byte> bytes) {
  hash.add(uint64_t{bytes.size()});
  hash.add(bytes.data(), std::min(bytes.size(), leading_bytes));
}

}  // namespace

void ContentHash::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

ContentHash::ContentHash() : state_(XXH3_createState()) {
  if (state_) XXH3_128bits_reset(state_.get());
}

void ContentHash::add(const void* bytes, size_t count) {
  if (state_ && count > 0) XXH3_128bits_update(state_.get(), bytes, count);
}

void ContentHash::add(std::string_view text) {
  add(uint64_t{text.size()});
  add(text.data(), text.size());
}

std::string ContentHash::hexadecimal() const {
  if (!state_) return {};
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string source_fingerprint(std::span<const MappedTensor> tensors) {
  ContentHash hash;
  for (const MappedTensor& tensor : tensors) {
    hash.add(tensor.name);
    for (const Source& source : tensor.sources) {
      hash.add(source.name);
      hash.add(source_type_name(source));
      add_begin(hash, source.bytes);
      add_begin(hash, source.scales);
      // Each look maps pages around it as well, which would add up over tens of thousands of matrices.
      drop_mapped_pages(source.bytes);
      drop_mapped_pages(source.scales);
    }
  }
  return hash.hexadecimal();
}

std::string imatrix_fingerprint(const format::Imatrix& imatrix) {
  ContentHash hash;
  for (const auto& [name, values] : imatrix.entries) {
    hash.add(name);
    hash.add(uint64_t{values.size()});
    hash.add(values.data(), values.size() * sizeof(float));
  }
  return hash.hexadecimal();
}

Result<std::string> file_sha256(const std::string& path) {
  DS4_ASSIGN(const MappedFile file, MappedFile::open(path));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool fine = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (auto rest = file.bytes(); fine && !rest.empty();) {
    const auto chunk = rest.first(std::min(rest.size(), chunk_bytes));
    fine = EVP_DigestUpdate(context.get(), chunk.data(), chunk.size()) == 1;
    drop_mapped_pages(chunk);
    rest = rest.subspan(chunk.size());
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  if (!fine || EVP_DigestFinal_ex(context.get(), digest, &length) != 1)
    return fail(ErrorCode::internal, "{}: the SHA-256 cannot be computed", path);
  std::string text;
  for (unsigned i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace ds4::quantize
