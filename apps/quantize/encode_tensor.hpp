// Decodes a tensor, encodes it in another number format on all threads, and streams it into a GGUF file.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.hpp"
#include "ds4/error.hpp"
#include "format/gguf_writer.hpp"
#include "format/imatrix.hpp"
#include "tensor_map.hpp"

namespace ds4::quantize {

struct EncoderOptions {
  std::string source;               // folder or file that is read, for messages
  unsigned threads = 0;             // 0 = one for each processor
  std::function<bool()> cancelled;  // polled before each source and each chunk of rows; may be empty
  const format::Imatrix* imatrix = nullptr;
};

/// What is written depends on the tensors and the importance only, not on the number of threads. Keeps its
/// buffers from one tensor to the next.
class TensorEncoder {
 public:
  explicit TensorEncoder(EncoderOptions options);

  /// Writes all of `tensor` as `type`; `begin_source` (may be empty) is called before each of its sources. An
  /// error if a value is not finite, or too large for `type`.
  Result<void> write(const MappedTensor& tensor, format::TensorType type, format::GgufWriter& writer,
                     const std::function<void(size_t)>& begin_source = {});

  /// Whether the importance file has a vector for every source of `tensor` that is searched for codes;
  /// nothing if none is. An error if a vector has another length.
  Result<std::optional<bool>> has_importance(const MappedTensor& tensor, format::TensorType type) const;

  /// The importance of the columns of source `number`, as the encoders take it: that of the file, else for
  /// types that need one the sums of squares of its columns, else empty.
  Result<std::vector<float>> importance(const MappedTensor& tensor, size_t number, format::TensorType type);

  /// Seconds that encoding `tensor` takes on a machine that does nothing else: the processor time of its
  /// first rows, extrapolated and divided by the threads.
  Result<double> measure_seconds(const MappedTensor& tensor, format::TensorType type);

  /// Bytes that encoding `tensor` needs besides the mapped source and the importance file.
  uint64_t memory_bytes(const MappedTensor& tensor, format::TensorType type) const;

  unsigned threads() const { return pool_.size(); }

 private:
  struct RowError {
    uint64_t row = 0;
    Error error;
  };

  /// The vector of the file for a source, empty if there is none.
  Result<std::span<const float>> find_importance(const MappedTensor& tensor, size_t number) const;
  Result<void> write_matrix(const MappedTensor& tensor, size_t number, format::TensorType type,
                            format::GgufWriter& writer);
  Result<void> write_table(const MappedTensor& tensor, format::GgufWriter& writer);
  Result<void> encode_rows(const MappedTensor& tensor, const Source& source, format::TensorType type,
                           const float* importance, uint64_t first, uint64_t count);
  std::vector<float> column_energies(const MappedTensor& tensor, const Source& source);

  EncoderOptions options_;
  ThreadPool pool_;
  std::vector<std::vector<float>> values_;  // a row for each thread
  std::vector<std::byte> encoded_;          // the rows of a chunk
};

}  // namespace ds4::quantize
