// Writes a random model of Flash width and, for each mode of the CPU backend, everything that a pass over a
// pseudo-random text computes, as raw little-endian arrays: what another implementation is compared with, and
// what tests/data/flash-width.json was checked with. Not a test.
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include <CLI/CLI.hpp>

#include "support/flash_width.hpp"

namespace {

using ds4::testing::FlashWidthCounts;
using ds4::testing::LoadedModel;
using ds4::testing::PassRecorder;

template <class T>
void write_array(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  const auto bytes = std::as_bytes(std::span(values));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

struct Arguments {
  FlashWidthCounts counts{6, 8, 3, 512, 512};
  size_t tokens = 2300, chunk_tokens = 1024;
  unsigned threads = 0;
  std::string folder;
  std::vector<std::string> modes{"plain", "rounded", "int8"};
};

// plain: no round trips, F32 activations; rounded: with round trips; int8: activations in 8 bits as well.
ds4::cpu::CpuOptions backend_options(const std::string& mode, const Arguments& arguments,
                                     PassRecorder& recorder) {
  ds4::cpu::CpuOptions options;
  options.threads = arguments.threads;
  options.round_trips = mode != "plain";
  options.exact_activations = mode != "int8";
  options.observer = &recorder;
  return options;
}

void dump(const std::string& mode, const Arguments& arguments, const std::vector<ds4::Token>& tokens) {
  const auto begin = std::chrono::steady_clock::now();
  PassRecorder recorder;
  const LoadedModel model(arguments.folder + "/model.gguf", "", backend_options(mode, arguments, recorder));
  const auto logits = record_pass(model, recorder, tokens, arguments.chunk_tokens);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const std::string prefix = arguments.folder + "/" + mode;
  write_array(prefix + ".logits.f32", logits);
  for (const auto& [layer, values] : recorder.streams)
    write_array(fmt::format("{}.streams{}.f32", prefix, layer), values);
  for (const auto& [layer, values] : recorder.experts)
    write_array(fmt::format("{}.experts{}.u32", prefix, layer), values);
  for (const auto& [layer, by_position] : recorder.index_rows) {
    std::vector<uint32_t> records;  // position, then its rows
    for (const auto& [position, rows] : by_position) {
      records.push_back(static_cast<uint32_t>(position));
      records.insert(records.end(), rows.begin(), rows.end());
    }
    write_array(fmt::format("{}.rows{}.u32", prefix, layer), records);
  }
  fmt::print("{}: {} tokens in {:.1f} s\n", mode, tokens.size(), seconds.count());
}

int run(const Arguments& arguments) {
  std::filesystem::create_directories(arguments.folder);
  const std::string path = arguments.folder + "/model.gguf";
  ds4::testing::must(write_tiny_model(path, flash_width_options(arguments.counts)));
  const auto tokens = ds4::testing::flash_width_tokens(arguments.tokens, arguments.counts.vocabulary);
  write_array(arguments.folder + "/tokens.i32", tokens);
  for (const std::string& mode : arguments.modes) dump(mode, arguments, tokens);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Writes a random model of Flash width and what the CPU backend computes with it.");
  app.add_option("folder", arguments.folder, "where to write")->required();
  app.add_option("--layers", arguments.counts.layers);
  app.add_option("--experts", arguments.counts.experts);
  app.add_option("--experts-used", arguments.counts.experts_used);
  app.add_option("--index-top-k", arguments.counts.index_top_k);
  app.add_option("--vocabulary", arguments.counts.vocabulary);
  app.add_option("--tokens", arguments.tokens);
  app.add_option("--chunk-tokens", arguments.chunk_tokens);
  app.add_option("--threads", arguments.threads, "0: one for each processor");
  app.add_option("--modes", arguments.modes, "plain, rounded, int8")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    return run(arguments);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
