#include "model/tensor_names.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ds4::model {
namespace {

struct Alias {
  std::string_view ours;  // start of the name after "blk.N."
  std::string_view other;
};

constexpr Alias aliases[] = {
    {"output_hc_", "hc_head_"},
    {"attn_kv.", "attn_kv_latent."},
    {"attn_compressor_", "attn_compress_"},
    {"indexer_compressor_", "indexer.compress_"},
};

// Names that other files write without ".weight" or ".bias".
constexpr std::string_view unsuffixed[] = {
    "output_hc_",
    "hc_attn_",
    "hc_ffn_",
    "attn_sinks.",
    "ffn_gate_tid2eid.",
    "exp_probs_b.",
    "attn_compressor_ape",
    "indexer_compressor_ape",
};

size_t block_prefix_length(std::string_view name) {
  if (!name.starts_with("blk.")) return 0;
  const size_t dot = name.find('.', 4);
  return dot == std::string_view::npos ? 0 : dot + 1;
}

}  // namespace

std::vector<std::string> tensor_spellings(std::string_view name) {
  const size_t prefix_length = block_prefix_length(name);
  const std::string prefix(name.substr(0, prefix_length));
  const std::string_view inner = name.substr(prefix_length);
  std::vector<std::string> spellings{std::string(name)};
  for (const Alias& alias : aliases) {
    if (inner.starts_with(alias.ours))
      spellings.push_back(prefix + std::string(alias.other) + std::string(inner.substr(alias.ours.size())));
  }
  const bool may_lack_suffix = std::any_of(std::begin(unsuffixed), std::end(unsuffixed),
                                           [&](std::string_view start) { return inner.starts_with(start); });
  if (may_lack_suffix) {
    const size_t count = spellings.size();
    for (size_t i = 0; i < count; ++i) spellings.push_back(spellings[i].substr(0, spellings[i].rfind('.')));
  }
  return spellings;
}

Result<const format::GgufTensor*> find_tensor(const format::GgufFile& file, std::string_view name) {
  const format::GgufTensor* found = nullptr;
  for (const std::string& spelling : tensor_spellings(name)) {
    const format::GgufTensor* tensor = file.find_tensor(spelling);
    if (!tensor) continue;
    if (found)
      return fail(ErrorCode::format, "{}: tensor {} is present under two names, {} and {}", file.path(), name,
                  found->name, tensor->name);
    found = tensor;
  }
  return found;
}

}  // namespace ds4::model
