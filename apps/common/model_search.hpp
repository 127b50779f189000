// Which model file to open.
#pragma once

#include <string>

#include "ds4/error.hpp"

namespace ds4::cli {

struct ModelChoice {
  std::string path;
  bool bundled = false;  // the small model that comes with the program
};

/// The user's choice, else ./ds4flash.gguf, else the bundled model beside the installed program or in the
/// source tree.
Result<ModelChoice> find_model(const std::string& wanted);

}  // namespace ds4::cli
