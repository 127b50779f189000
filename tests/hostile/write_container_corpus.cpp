// Writes the seeds of the container fuzzers: write_container_corpus tests/fuzz/corpus
#include <cstdio>
#include <fstream>
#include <string>

#include "container_seeds.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const auto write = [&](const char* kind, const std::vector<ds4::format::Seed>& seeds) {
    bool good = true;
    for (const auto& seed : seeds) {
      std::ofstream out(std::string(argv[1]) + "/" + kind + "/" + seed.name, std::ios::binary);
      out.write(seed.content.data(), static_cast<std::streamsize>(seed.content.size()));
      good = good && out.flush().good();
    }
    return good;
  };
  const bool good =
      write("gguf", ds4::format::gguf_seeds()) && write("safetensors", ds4::format::safetensors_seeds());
  if (!good) std::fprintf(stderr, "%s: the corpus cannot be written\n", argv[1]);
  return good ? 0 : 1;
}
