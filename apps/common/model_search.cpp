#include "common/model_search.hpp"

#include <filesystem>
#include <system_error>

#include "base/error.hpp"

namespace ds4::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// The bundled model's place relative to the program that runs, so that an installation can be moved.
fs::path installed_model() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : (program.parent_path() / DS4_INSTALLED_MODEL).lexically_normal();
}

}  // namespace

Result<ModelChoice> find_model(const std::string& wanted) {
  if (!wanted.empty()) return ModelChoice{wanted, false};
  if (is_there("ds4flash.gguf")) return ModelChoice{"ds4flash.gguf", false};
  for (const fs::path& path : {installed_model(), fs::path(DS4_SOURCE_MODEL)}) {
    if (!path.empty() && is_there(path)) return ModelChoice{path.string(), true};
  }
  return fail(ErrorCode::not_found,
              "no model: there is no ds4flash.gguf in this folder and the bundled model is not installed; "
              "name a file with -m");
}

}  // namespace ds4::cli
