// Reads the reference values of the nano model: tests/data/nano/prompts.json (index) and golden/<id>.bin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "ds4/token.hpp"
#include "support/ops_vectors.hpp"

namespace ds4::test {

/// One prompt with the values of one mode: "plain" (no rounding of cached rows) or "qat" (as the model is
/// defined).
class NanoGolden {
 public:
  NanoGolden(const boost::json::value& prompt, std::string mode)
      : prompt_(prompt),
        mode_(std::move(mode)),
        bytes_(read_file(DS4_SOURCE_DIR "/tests/data/nano/golden/" + id() + ".bin")) {}

  std::string id() const { return std::string(prompt_.at("id").as_string()); }
  const std::string& mode() const { return mode_; }
  std::vector<Token> ids() const { return tokens(prompt_.at("ids")); }
  const boost::json::value& values() const { return prompt_.at("modes").at(mode_); }
  std::vector<Token> greedy() const { return tokens(values().at("greedy")); }

  bool has(const std::string& name) const {
    return prompt_.at("arrays").as_object().contains(mode_ + "." + name);
  }
  std::vector<float> floats(const std::string& name) const { return load<float>(name); }
  std::vector<int32_t> ints(const std::string& name) const { return load<int32_t>(name); }

  static std::vector<Token> tokens(const boost::json::value& array) {
    std::vector<Token> result;
    for (const auto& id : array.as_array()) result.push_back(id.to_number<Token>());
    return result;
  }

 private:
  template <class T>
  std::vector<T> load(const std::string& name) const {
    const auto& info = prompt_.at("arrays").at(mode_ + "." + name);
    size_t count = 1;
    for (const auto& extent : info.at("shape").as_array()) count *= extent.to_number<size_t>();
    const auto offset = info.at("offset").to_number<size_t>();
    if (offset + count * sizeof(T) > bytes_.size()) throw std::runtime_error(name + ": outside its file");
    std::vector<T> values(count);
    std::memcpy(values.data(), bytes_.data() + offset, count * sizeof(T));
    return values;
  }

  boost::json::value prompt_;
  std::string mode_;
  std::string bytes_;
};

/// All prompts in one mode.
inline std::vector<NanoGolden> nano_goldens(const std::string& mode) {
  const auto index = boost::json::parse(read_file(DS4_SOURCE_DIR "/tests/data/nano/prompts.json"));
  std::vector<NanoGolden> result;
  for (const auto& prompt : index.at("prompts").as_array()) result.emplace_back(prompt, mode);
  return result;
}

}  // namespace ds4::test
