// The file of --trace: every request with its prompt and its answer.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "ds4/error.hpp"
#include "server/job.hpp"

namespace ds4::server {

/// One request as text.
std::string trace_text(const RequestRecord& record, const std::string& local_time);

/// Thread-safe. Readable by its owner only, and emptied at the start.
class TraceFile {
 public:
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path);
  ~TraceFile();

  /// Nothing is lost when the process is killed afterwards. False if the file takes no more; it is not
  /// written to again.
  bool write(const RequestRecord& record);

 private:
  explicit TraceFile(int descriptor) : descriptor_(descriptor) {}

  std::mutex mutex_;
  int descriptor_;
  bool failed_ = false;
};

}  // namespace ds4::server
