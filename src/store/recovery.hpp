// Brings the index and the files of a store together again.
#pragma once

#include <cstddef>

#include "ds4/error.hpp"
#include "store/store_files.hpp"
#include "store/store_index.hpp"

namespace ds4::store {

struct RecoveryReport {
  size_t adopted = 0;  // files that the index did not know
  size_t missing = 0;  // entries without their file
  size_t removed = 0;  // files that nothing needs or that are damaged
};

/// Adopts files that the index does not know, forgets what has no file, removes what nothing needs and what
/// was not finished. Reads the headers of unknown files only. Precondition: the writer's lock is held.
Result<RecoveryReport> recover(const StoreFolder& folder, StoreIndex& index);

}  // namespace ds4::store
