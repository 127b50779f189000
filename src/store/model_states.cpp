#include "store/model_states.hpp"

#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "engine/fingerprint.hpp"
#include "format/gguf.hpp"
#include "model/shape.hpp"
#include "model/weights.hpp"
#include "text/gguf_tokenizer.hpp"

namespace ds4::store {
namespace {

Result<ModelStates> read(const ModelFiles& files) {
  DS4_ASSIGN(const auto file, format::GgufFile::open(files.model_path));
  std::string notice;
  DS4_ASSIGN(const auto shape, model::read_shape(file, &notice));
  DS4_ASSIGN(auto tokenizer, load_tokenizer(file));
  std::optional<format::GgufFile> drafter_file;
  if (!files.mtp_path.empty()) {
    DS4_ASSIGN(drafter_file, format::GgufFile::open(files.mtp_path));
    if (!model::has_mtp(*drafter_file))
      return fail(ErrorCode::format, "{}: there is no drafter in it", files.mtp_path);
  }
  const bool drafter = drafter_file || model::has_mtp(file);
  std::string digits =
      ds4::fingerprint({file, drafter_file ? &*drafter_file : nullptr, drafter, {}, files.exact_activations});
  return ModelStates{StateLayout(shape.ratios, shape.width, shape.vocabulary, drafter), std::move(tokenizer),
                     std::move(digits)};
}

}  // namespace

Result<ModelStates> read_model_states(const ModelFiles& files) {
  return catch_bad_alloc("what is known of a model", [&] { return read(files); });
}

}  // namespace ds4::store
