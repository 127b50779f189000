// Reads the vectors of single operations: tests/data/nano/ops.json (index) and ops.bin (little-endian
// arrays).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <boost/json.hpp>

namespace ds4::test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class T>
struct OpsArray {
  std::vector<size_t> shape;
  std::vector<T> values;

  /// Number of values in one entry of the first dimension.
  size_t row_size() const { return values.size() / shape.at(0); }
  const T* row(size_t index) const { return values.data() + index * row_size(); }
};

/// Throws on a missing case or array, or on another element type: a broken test, not a failing one.
class OpsVectors {
 public:
  OpsVectors()
      : index_(boost::json::parse(read_file(DS4_SOURCE_DIR "/tests/data/nano/ops.json"))),
        bytes_(read_file(DS4_SOURCE_DIR "/tests/data/nano/ops.bin")) {}

  OpsArray<float> floats(const std::string& case_name, const std::string& array_name) const {
    return load<float>(case_name, array_name, "f32");
  }
  OpsArray<int32_t> ints(const std::string& case_name, const std::string& array_name) const {
    return load<int32_t>(case_name, array_name, "i32");
  }

 private:
  template <class T>
  OpsArray<T> load(const std::string& case_name, const std::string& array_name, const char* dtype) const {
    const auto& names = index_.at("cases").at(case_name).at("arrays");
    const auto& info = index_.at("arrays").at(names.at(array_name).as_string());
    if (info.at("dtype").as_string() != dtype) throw std::runtime_error(case_name + ": not of type " + dtype);
    OpsArray<T> array;
    size_t count = 1;
    for (const auto& extent : info.at("shape").as_array()) {
      array.shape.push_back(extent.to_number<size_t>());
      count *= array.shape.back();
    }
    const auto offset = info.at("offset").to_number<size_t>();
    if (offset + count * sizeof(T) > bytes_.size()) throw std::runtime_error(case_name + ": beyond the file");
    array.values.resize(count);
    std::memcpy(array.values.data(), bytes_.data() + offset, count * sizeof(T));
    return array;
  }

  boost::json::value index_;
  std::string bytes_;
};

}  // namespace ds4::test
