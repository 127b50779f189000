#include "encode_tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/number_formats.hpp"

namespace ds4::quantize {
namespace {

using format::SafetensorsType;
using format::TensorType;

constexpr size_t chunk_bytes = 1u << 20;

TensorType plain_type(SafetensorsType type) {
  return type == SafetensorsType::f32   ? TensorType::f32
         : type == SafetensorsType::f16 ? TensorType::f16
                                        : TensorType::bf16;
}

void decode_source_row(const Source& source, uint64_t row, uint64_t cols, float* out) {
  const std::byte* bytes = source.data->bytes.data();
  switch (source.format) {
    case SourceFormat::fp8:
      format::decode_fp8_e4m3(bytes, source.scale->bytes.data(), row, cols, out);
      return;
    case SourceFormat::fp4:
      format::decode_fp4_e2m1(bytes + row * (cols / 2), source.scale->bytes.data() + row * (cols / 32), cols,
                              out);
      return;
    default: {
      const TensorType type = plain_type(source.data->type);
      format::decode_row(type, bytes + row * format::row_bytes(type, cols), cols, out);
    }
  }
}

// The largest magnitude that a value, or the scale of a block of values, may have.
double largest_value(TensorType type) {
  constexpr double f16_max = 65504;
  if (type == TensorType::f16) return f16_max;
  if (type == TensorType::q8_0) return f16_max * 127;
  return INFINITY;
}

}  // namespace

Result<void> TensorEncoder::check_values(const std::string& name, TensorType type) const {
  float largest = 0;
  bool finite = true;
  for (float value : values_) {
    finite &= std::isfinite(value);
    largest = std::max(largest, std::abs(value));
  }
  if (!finite)
    return fail(ErrorCode::format, "{}: tensor {} holds a value that is not finite", folder_, name);
  if (largest > largest_value(type))
    return fail(ErrorCode::unsupported, "{}: tensor {} holds the value {}, too large for {}", folder_, name,
                largest, format::type_name(type));
  return {};
}

Result<void> TensorEncoder::write(const MappedTensor& tensor, TensorType type, format::GgufWriter& writer) {
  for (const Source& source : tensor.sources) {
    if (cancelled_ && cancelled_()) return fail(ErrorCode::cancelled, "interrupted");
    if (source.format == SourceFormat::integer)
      DS4_TRY(write_table(source, writer));
    else
      DS4_TRY(write_source(tensor, source, type, writer));
  }
  return {};
}

Result<void> TensorEncoder::write_source(const MappedTensor& tensor, const Source& source, TensorType type,
                                         format::GgufWriter& writer) {
  const uint64_t cols = tensor.dims[0];
  const uint64_t rows = tensor.dims.size() > 1 ? tensor.dims[1] : 1;
  const uint64_t bytes_per_row = format::row_bytes(type, cols);
  const uint64_t rows_per_chunk = std::clamp<uint64_t>(chunk_bytes / bytes_per_row, 1, rows);
  values_.resize(cols);
  encoded_.resize(rows_per_chunk * bytes_per_row);
  for (uint64_t first = 0; first < rows; first += rows_per_chunk) {
    const uint64_t count = std::min(rows_per_chunk, rows - first);
    for (uint64_t i = 0; i < count; ++i) {
      decode_source_row(source, first + i, cols, values_.data());
      DS4_TRY(check_values(source.data->name, type));
      format::encode_row(type, values_.data(), cols, encoded_.data() + i * bytes_per_row);
    }
    DS4_TRY(writer.write_tensor({encoded_.data(), count * bytes_per_row}));
  }
  return {};
}

// Router tables: I64 in a checkpoint, I32 in a GGUF. That the numbers name experts is checked in convert.cpp,
// which knows how many there are.
Result<void> TensorEncoder::write_table(const Source& source, format::GgufWriter& writer) {
  const std::byte* bytes = source.data->bytes.data();
  const uint64_t count = source.data->elements();
  if (source.data->type == SafetensorsType::i32) return writer.write_tensor({bytes, count * sizeof(int32_t)});
  encoded_.resize(count * sizeof(int32_t));
  for (uint64_t i = 0; i < count; ++i) {
    int64_t wide = 0;
    std::memcpy(&wide, bytes + i * sizeof wide, sizeof wide);
    const auto narrow = static_cast<int32_t>(wide);
    if (narrow != wide)
      return fail(ErrorCode::format, "{}: tensor {} holds the value {}", folder_, source.data->name, wide);
    std::memcpy(encoded_.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
  return writer.write_tensor({encoded_.data(), encoded_.size()});
}

}  // namespace ds4::quantize
