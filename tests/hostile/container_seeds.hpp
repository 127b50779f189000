// Small container files, good and bad, from which the hostile-input tests and the fuzzers start.
#pragma once

#include <string>
#include <vector>

namespace ds4::format {

struct Seed {
  std::string name;  // file name in the corpus folder
  std::string content;
  bool valid = false;
};

std::vector<Seed> gguf_seeds();
std::vector<Seed> safetensors_seeds();

}  // namespace ds4::format
