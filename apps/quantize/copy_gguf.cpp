#include "copy_gguf.hpp"

#include <algorithm>
#include <span>

#include "base/error.hpp"
#include "base/mapped_file.hpp"

namespace ds4::quantize {
namespace {

constexpr size_t piece_bytes = size_t{16} << 20;

}  // namespace

void copy_keys(const format::GgufFile& file, const std::function<bool(std::string_view)>& leave_out,
               format::GgufWriter& writer) {
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("split.") && !leave_out(key)) writer.add_value(key, value);
  }
}

void add_like(std::string_view name, const format::GgufTensor& tensor, format::GgufWriter& writer) {
  writer.add_tensor(name, tensor.type, std::span(tensor.dims).first(std::max(tensor.n_dims, 1u)));
}

Result<void> copy_tensor(const format::GgufTensor& tensor, const std::function<bool()>& cancelled,
                         format::GgufWriter& writer) {
  for (std::span<const std::byte> rest(tensor.data, tensor.size_bytes); !rest.empty();) {
    if (cancelled && cancelled()) return fail(ErrorCode::cancelled, "interrupted");
    const auto piece = rest.first(std::min(rest.size(), piece_bytes));
    DS4_TRY(writer.write_tensor(piece));
    drop_mapped_pages(piece);
    rest = rest.subspan(piece.size());
  }
  return {};
}

}  // namespace ds4::quantize
