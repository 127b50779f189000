#include "embedded_vectors.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace ds4::quantize {

void add_vectors(const format::Imatrix& imatrix, std::span<const MappedTensor> tensors,
                 format::GgufWriter& writer) {
  for (const auto& [name, values] : imatrix.entries) {
    std::vector<uint64_t> dims{values.size()};
    const auto tensor = std::ranges::find(tensors, name, &MappedTensor::name);
    if (tensor != tensors.end() && values.size() == tensor->columns() * tensor->sources.size())
      dims = {tensor->columns(), tensor->sources.size()};
    writer.add_tensor(std::string(format::imatrix_tensor_prefix) + name, format::TensorType::f32, dims);
  }
}

Result<void> write_vectors(const format::Imatrix& imatrix, size_t complete, format::GgufWriter& writer) {
  for (const auto& [name, values] : imatrix.entries) {
    if (complete > 0) {
      --complete;
      continue;
    }
    DS4_TRY(writer.write_tensor(std::as_bytes(std::span(values))));
  }
  return {};
}

}  // namespace ds4::quantize
