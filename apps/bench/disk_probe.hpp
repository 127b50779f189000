// Measuring how fast a session's state goes to the disk cache and comes back from it (docs/bench.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"

namespace ds4::store {
class StateStore;
}  // namespace ds4::store

namespace ds4::bench {

struct DiskTimes {
  uint64_t written_bytes = 0;  // what was not there from shorter states of the same text
  double write_seconds = 0;    // until the files are safe from loss of power
  uint64_t read_bytes = 0;     // the whole state
  double read_seconds = 0;     // from the search to a session that can go on

  double write_bytes_per_second() const;
  double read_bytes_per_second() const;
};

/// Whether two sessions have the same tokens and, bit for bit, the same logits. Errors: those of the logits.
Result<bool> same_state(const Session& a, const Session& b);

/// A disk cache whose states no other run finds, and which are removed in the end.
class DiskProbe {
 public:
  /// Whether the folder can be one; creates it if it is missing. Does not need a model. The errors here and
  /// below name the folder.
  static Result<void> check_folder(const std::string& folder);
  /// The engine must outlive the probe.
  static Result<DiskProbe> open(const std::string& folder, const Engine& engine);
  DiskProbe(DiskProbe&&) noexcept;
  DiskProbe& operator=(DiskProbe&&) = delete;
  ~DiskProbe();

  /// Writes the session's state, reads it into another session, and compares the two.
  Result<DiskTimes> measure(const Session& session);

 private:
  DiskProbe(std::string folder, const Engine& engine, std::unique_ptr<store::StateStore> store);
  Result<void> write(const Session& session, DiskTimes& times);
  Result<Session> read(const Session& session, DiskTimes& times);

  std::string folder_;
  const Engine* engine_;
  std::unique_ptr<store::StateStore> store_;
};

}  // namespace ds4::bench
