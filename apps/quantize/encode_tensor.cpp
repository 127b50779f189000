#include "encode_tensor.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "format/fp4_e2m1.hpp"
#include "format/fp8_e4m3.hpp"
#include "format/number_formats.hpp"

namespace ds4::quantize {
namespace {

using format::TensorType;

constexpr uint64_t chunk_bytes = uint64_t{4} << 20;
constexpr size_t rows_at_a_time = 4;
constexpr uint64_t writer_bytes = uint64_t{2} << 20;  // buffer of the writer and what is small
// Fixed, so that sums do not depend on the number of threads.
constexpr uint64_t energy_parts = 32;
constexpr uint8_t nan_scale = 0xff;
// Processor time that a sample takes at least, of all threads together.
constexpr double sample_seconds = 0.1, searched_sample_seconds = 0.4;

/// Of all threads, so that other programs on the machine do not change what is measured.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void decode_source_row(const Source& source, uint64_t row, uint64_t cols, float* out) {
  const std::byte* bytes = source.bytes.data();
  switch (source.format) {
    case SourceFormat::fp8:
      format::decode_fp8_e4m3(bytes, source.scales.data(), row, cols, out);
      return;
    case SourceFormat::fp4:
      format::decode_fp4_e2m1(bytes + row * (cols / 2), source.scales.data() + row * (cols / 32), cols, out);
      return;
    default:
      format::decode_row(source.type, bytes + row * format::row_bytes(source.type, cols), cols, out);
  }
}

/// FP4 blocks are those of MXFP4 in another order.
Result<void> repack_row(const Source& source, uint64_t row, uint64_t cols, std::byte* out) {
  const std::byte* scales = source.scales.data() + row * (cols / 32);
  if (std::find(scales, scales + cols / 32, std::byte{nan_scale}) != scales + cols / 32)
    return fail(ErrorCode::not_finite, "a scale is not a number");
  format::repack_fp4_e2m1_to_mxfp4(source.bytes.data() + row * (cols / 2), scales, cols, out);
  return {};
}

bool searches(TensorType type) {
  return type == TensorType::q4_k || type == TensorType::q2_k || type == TensorType::iq2_xxs ||
         type == TensorType::mxfp4;
}

/// True if rows are copied or reordered, so that importance has nothing to decide.
bool is_lossless(const Source& source, TensorType type) {
  return (source.format == SourceFormat::fp4 && type == TensorType::mxfp4) ||
         (source.format == SourceFormat::rows && source.type == type);
}

uint64_t rows_of_chunk(const MappedTensor& tensor, TensorType type) {
  const uint64_t bytes_per_row = format::row_bytes(type, tensor.columns());
  return std::clamp<uint64_t>(chunk_bytes / bytes_per_row, 1, tensor.rows());
}

}  // namespace

TensorEncoder::TensorEncoder(EncoderOptions options)
    : options_(std::move(options)), pool_(options_.threads), values_(pool_.size()) {}

Result<void> TensorEncoder::write(const MappedTensor& tensor, TensorType type, format::GgufWriter& writer,
                                  const std::function<void(size_t)>& begin_source) {
  for (size_t i = 0; i < tensor.sources.size(); ++i) {
    if (options_.cancelled && options_.cancelled()) return fail(ErrorCode::cancelled, "interrupted");
    if (begin_source) begin_source(i);
    const Source& source = tensor.sources[i];
    DS4_TRY(source.format == SourceFormat::integer ? write_table(tensor, writer)
                                                   : write_matrix(tensor, i, type, writer));
    drop_mapped_pages(source.bytes);
    drop_mapped_pages(source.scales);
  }
  return {};
}

Result<std::span<const float>> TensorEncoder::find_importance(const MappedTensor& tensor,
                                                              size_t number) const {
  std::span<const float> found;
  for (const std::string& name : {tensor.name, std::string(tensor.sources[number].name)}) {
    if (!found.empty()) break;
    DS4_ASSIGN(found, options_.imatrix->find(name, tensor.columns(), number, tensor.sources.size()));
  }
  return found;
}

Result<std::optional<bool>> TensorEncoder::has_importance(const MappedTensor& tensor, TensorType type) const {
  std::optional<bool> all;
  for (size_t i = 0; i < tensor.sources.size(); ++i) {
    if (!options_.imatrix || !searches(type) || is_lossless(tensor.sources[i], type)) continue;
    DS4_ASSIGN(const auto found, find_importance(tensor, i));
    all = all.value_or(true) && !found.empty();
  }
  return all;
}

Result<std::vector<float>> TensorEncoder::importance(const MappedTensor& tensor, size_t number,
                                                     TensorType type) {
  const Source& source = tensor.sources[number];
  std::vector<float> raw;
  if (options_.imatrix && searches(type) && !is_lossless(source, type)) {
    DS4_ASSIGN(const auto found, find_importance(tensor, number));
    raw.assign(found.begin(), found.end());
  }
  if (raw.empty() && format::needs_importance(type) && !is_lossless(source, type))
    raw = column_energies(tensor, source);
  if (raw.empty()) return raw;
  auto prepared = format::prepare_importance(raw);
  if (!prepared)
    return fail(prepared.error().code, "{}: tensor {}: {}", options_.source, source.name,
                prepared.error().message);
  return prepared;
}

// Sum of squares of each column, in parts that are added in order.
std::vector<float> TensorEncoder::column_energies(const MappedTensor& tensor, const Source& source) {
  const uint64_t cols = tensor.columns(), rows = tensor.rows();
  const uint64_t part_rows = (rows + energy_parts - 1) / energy_parts;
  std::vector<double> sums(energy_parts * cols, 0.0);
  for (auto& row : values_) row.resize(cols);
  pool_.parallel_for(energy_parts, 1, [&](size_t begin, size_t end, unsigned worker) {
    float* values = values_[worker].data();
    for (size_t part = begin; part < end; ++part) {
      for (uint64_t row = part * part_rows; row < std::min((part + 1) * part_rows, rows); ++row) {
        decode_source_row(source, row, cols, values);
        for (uint64_t c = 0; c < cols; ++c) sums[part * cols + c] += double{values[c]} * double{values[c]};
      }
    }
  });
  std::vector<float> energies(cols);
  for (uint64_t c = 0; c < cols; ++c) {
    double sum = 0;
    for (uint64_t part = 0; part < energy_parts; ++part) sum += sums[part * cols + c];
    energies[c] = static_cast<float>(sum);
  }
  return energies;
}

Result<void> TensorEncoder::encode_rows(const MappedTensor& tensor, const Source& source, TensorType type,
                                        const float* importance, uint64_t first, uint64_t count) {
  const uint64_t cols = tensor.columns(), bytes_per_row = format::row_bytes(type, cols);
  for (auto& row : values_) row.resize(cols);
  if (encoded_.size() < count * bytes_per_row) encoded_.resize(count * bytes_per_row);
  std::vector<std::optional<RowError>> errors(pool_.size());
  pool_.parallel_for(count, rows_at_a_time, [&](size_t begin, size_t end, unsigned worker) {
    float* values = values_[worker].data();
    for (size_t i = begin; i < end; ++i) {
      std::byte* out = encoded_.data() + i * bytes_per_row;
      Result<void> result;
      if (source.format == SourceFormat::fp4 && type == TensorType::mxfp4) {
        result = repack_row(source, first + i, cols, out);
      } else {
        decode_source_row(source, first + i, cols, values);
        result = is_lossless(source, type) ? format::check_encodable(type, values, cols)
                                           : format::encode_weighted_row(type, values, cols, importance, out);
        if (result && is_lossless(source, type))
          std::memcpy(out, source.bytes.data() + (first + i) * bytes_per_row, bytes_per_row);
      }
      auto& error = errors[worker];
      if (!result && (!error || first + i < error->row)) error = RowError{first + i, result.error()};
    }
  });
  const RowError* lowest = nullptr;
  for (const auto& error : errors) {
    if (error && (!lowest || error->row < lowest->row)) lowest = &*error;
  }
  if (!lowest) return {};
  return fail(lowest->error.code, "{}: tensor {}, row {}: {}", options_.source, source.name, lowest->row,
              lowest->error.message);
}

Result<void> TensorEncoder::write_matrix(const MappedTensor& tensor, size_t number, TensorType type,
                                         format::GgufWriter& writer) {
  DS4_ASSIGN(const std::vector<float> weights, importance(tensor, number, type));
  const uint64_t bytes_per_row = format::row_bytes(type, tensor.columns());
  const uint64_t chunk = rows_of_chunk(tensor, type);
  for (uint64_t first = 0; first < tensor.rows(); first += chunk) {
    if (options_.cancelled && options_.cancelled()) return fail(ErrorCode::cancelled, "interrupted");
    const uint64_t count = std::min(chunk, tensor.rows() - first);
    DS4_TRY(encode_rows(tensor, tensor.sources[number], type, weights.empty() ? nullptr : weights.data(),
                        first, count));
    DS4_TRY(writer.write_tensor({encoded_.data(), count * bytes_per_row}));
    // Else the pages of a checkpoint that was read would count as memory of this program.
    const auto& bytes = tensor.sources[number].bytes;
    const uint64_t source_row_bytes = bytes.size() / tensor.rows();
    drop_mapped_pages(bytes.subspan(first * source_row_bytes, count * source_row_bytes));
  }
  return {};
}

// Router tables: I64 in a checkpoint, I32 in a GGUF. That the numbers name experts is checked in convert.cpp,
// which knows how many there are.
Result<void> TensorEncoder::write_table(const MappedTensor& tensor, format::GgufWriter& writer) {
  const Source& source = tensor.sources[0];
  if (!source.is_wide) return writer.write_tensor(source.bytes);
  const uint64_t count = source.bytes.size() / sizeof(int64_t);
  encoded_.resize(std::max(encoded_.size(), count * sizeof(int32_t)));
  for (uint64_t i = 0; i < count; ++i) {
    int64_t wide = 0;
    std::memcpy(&wide, source.bytes.data() + i * sizeof wide, sizeof wide);
    const auto narrow = static_cast<int32_t>(wide);
    if (narrow != wide)
      return fail(ErrorCode::format, "{}: tensor {} holds the value {}", options_.source, source.name, wide);
    std::memcpy(encoded_.data() + i * sizeof narrow, &narrow, sizeof narrow);
  }
  return writer.write_tensor({encoded_.data(), count * sizeof(int32_t)});
}

Result<double> TensorEncoder::measure_seconds(const MappedTensor& tensor, TensorType type) {
  const Source& source = tensor.sources[0];
  if (source.format == SourceFormat::integer) return 0.0;
  const uint64_t rows = std::min(rows_of_chunk(tensor, type), uint64_t{64} * pool_.size());
  const std::vector<float> ones(tensor.columns(), 1.0f);
  const bool weighted = searches(type) && (options_.imatrix || format::needs_importance(type));
  const float* weights = weighted ? ones.data() : nullptr;
  DS4_TRY(encode_rows(tensor, source, type, weights, 0, rows));  // reads the pages
  const double least = searches(type) ? searched_sample_seconds : sample_seconds;
  const double begin = processor_seconds();
  double elapsed = 0;
  uint64_t done = 0;
  while (elapsed < least) {
    DS4_TRY(encode_rows(tensor, source, type, weights, 0, rows));
    done += rows;
    elapsed = processor_seconds() - begin;
  }
  const double all_rows = static_cast<double>(tensor.rows() * tensor.sources.size());
  double seconds = elapsed * all_rows / static_cast<double>(done);
  if (format::needs_importance(type) && !options_.imatrix && !is_lossless(source, type)) {
    const double energies = processor_seconds();
    static_cast<void>(column_energies(tensor, source));
    seconds += (processor_seconds() - energies) * static_cast<double>(tensor.sources.size());
  }
  return seconds / pool_.size();
}

uint64_t TensorEncoder::memory_bytes(const MappedTensor& tensor, TensorType type) const {
  if (tensor.role == model::TensorRole::table)
    return writer_bytes + tensor.columns() * tensor.rows() * sizeof(int32_t);
  const uint64_t cols = tensor.columns();
  uint64_t bytes = writer_bytes + rows_of_chunk(tensor, type) * format::row_bytes(type, cols);
  bytes += (pool_.size() + 2) * cols * sizeof(float);
  if (format::needs_importance(type)) bytes += energy_parts * cols * sizeof(double);
  return bytes;
}

}  // namespace ds4::quantize
