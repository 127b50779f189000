// Answers over HTTP with one engine, from the first connection to the end of the last answer.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ds4/engine.hpp"
#include "ds4/error.hpp"
#include "log.hpp"
#include "options.hpp"
#include "trace.hpp"

namespace ds4::server {

/// SIGINT and SIGTERM, taken by the main thread alone. Created before any other thread.
class ShutdownSignals {
 public:
  ShutdownSignals();
  void wait();
  /// Whether another one comes within `timeout`.
  bool again(std::chrono::milliseconds timeout);

  /// While it lives, the first signal ends the process: nothing is being answered yet, and a large model may
  /// take minutes to load.
  class EndProcess {
   public:
    explicit EndProcess(ShutdownSignals& signals);
    ~EndProcess();
    EndProcess(const EndProcess&) = delete;
    EndProcess& operator=(const EndProcess&) = delete;

   private:
    std::atomic<bool> over_{false};
    std::thread thread_;
  };

 private:
  sigset_t set_;
};

/// What a service needs from files. Opened before a model is loaded, so that mistakes show at once.
struct ServiceFiles {
  std::vector<std::string> keys;
  std::unique_ptr<TraceFile> trace;  // null: no trace
};
Result<ServiceFiles> open_service_files(const Options& options);

/// Answers until a signal comes, then lets what runs come to its end. The log says where it listens; a second
/// signal leaves the process at once.
Result<void> serve_until_signal(const Engine& engine, const Options& options, ServiceFiles files, Log& log,
                                ShutdownSignals& signals);

}  // namespace ds4::server
