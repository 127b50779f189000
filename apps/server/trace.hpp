// The file of --trace: every request with its prompt and its answers.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "ds4/error.hpp"
#include "server/job.hpp"

namespace ds4::server {

/// A request as text: what was asked and what the cache made of it, and how it was answered.
std::string trace_begin(const RequestRecord& record, const std::string& local_time);
std::string trace_end(const RequestRecord& record, const std::string& local_time);

/// Thread-safe. Readable by its owner only, and emptied at the start.
class TraceFile {
 public:
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path);
  ~TraceFile();

  /// Nothing is lost when the process is killed afterwards. False if the file takes no more; it is not
  /// written to again.
  bool begin(const RequestRecord& record);
  /// With the beginning if that was not written.
  bool end(const RequestRecord& record);

 private:
  explicit TraceFile(int descriptor) : descriptor_(descriptor) {}

  bool write(std::string_view text);

  std::mutex mutex_;
  int descriptor_;
  bool failed_ = false;
};

}  // namespace ds4::server
