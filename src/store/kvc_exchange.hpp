// States of a disk store to and from the original's files (docs/formats.md §14).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/state.hpp"
#include "ds4/tokenizer.hpp"
#include "store/dsv4_payload.hpp"
#include "store/state_store.hpp"

namespace ds4::store {

/// The model that states are exchanged for.
struct KvcModel {
  const StateLayout& layout;
  const Tokenizer& tokenizer;
};

struct KvcImport {
  uint64_t tokens = 0;
  WriteReport written;
  size_t replies = 0;                // with tool calls, kept as they were sampled
  std::vector<std::string> notices;  // one sentence each: what of the file was left out
};

/// Writes the state of the file at `path` to the store, as if a session had been saved. What can be checked
/// is: sizes and counts, that the name is the hash of the text where it is one, and that the text is that of
/// the tokens unless it is a client's transcript. Errors: format, unsupported (not Flash), io, out_of_memory.
Result<KvcImport> import_kvc(StateStore& store, const std::string& path, const KvcModel& model);

struct KvcExport {
  std::string path;
  uint64_t tokens = 0;
  uint64_t file_bytes = 0;
};

/// Writes a state of the store to the file `path`, or under the name of its text if that is a folder. Ids of
/// tool calls are not written: a store does not keep them. `expert_bits`: 2 or 4, see KvcHeader. Errors:
/// not_found, unsupported (not Flash), io, out_of_memory.
Result<KvcExport> export_kvc(StateStore& store, const StoreEntry& entry, const std::string& path,
                             const KvcModel& model, uint8_t expert_bits);

}  // namespace ds4::store
