// The bundled model with a defect.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "format/gguf.hpp"
#include "support/loaded_model.hpp"

namespace ds4::testing {

/// A copy of the bundled model in which one token's embedding is not a number.
class DamagedModel {
 public:
  explicit DamagedModel(Token token)
      : path_(::testing::TempDir() + "damaged-" + std::to_string(getpid()) + ".gguf") {
    const std::string whole = DS4_SOURCE_DIR "/models/nano/nano.gguf";
    std::ifstream in(whole, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const auto file = must(format::GgufFile::open(whole));
    for (const format::GgufTensor& tensor : file.tensors()) {
      if (tensor.name != "token_embd.weight") continue;
      const size_t row_bytes = tensor.size_bytes / tensor.dims[1];
      const std::string_view data(reinterpret_cast<const char*>(tensor.data), tensor.size_bytes);
      bytes.replace(bytes.find(data) + static_cast<size_t>(token) * row_bytes, row_bytes, row_bytes, '\xff');
    }
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  DamagedModel(const DamagedModel&) = delete;
  DamagedModel& operator=(const DamagedModel&) = delete;
  ~DamagedModel() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ds4::testing
