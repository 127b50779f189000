// Keys of the split screen: a thread that reads the terminal and does nothing else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace ds4::eval {

enum class EvalKey { pause, quit, up, down, enter };

/// Recognises keys in a stream that may be cut at any byte; other keys are dropped.
class EvalKeyDecoder {
 public:
  std::optional<EvalKey> next();
  void feed(std::string_view bytes) { pending_ += bytes; }
  /// Nothing came for a while: a lone Escape was the Escape key.
  void idle();

 private:
  std::string pending_;
};

/// Precondition: reads of `descriptor` return within a fraction of a second, with 0 bytes if there are none
/// (termios VMIN 0, VTIME 1).
class KeyReader {
 public:
  explicit KeyReader(int descriptor);
  /// Ends the thread.
  ~KeyReader();
  KeyReader(const KeyReader&) = delete;
  KeyReader& operator=(const KeyReader&) = delete;

  /// The oldest key that was not taken yet, waiting for one as long as told.
  std::optional<EvalKey> take(std::chrono::milliseconds patience = std::chrono::milliseconds(0));

 private:
  void read_keys(const std::stop_token& stop);
  int descriptor_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<EvalKey> keys_;
  std::jthread thread_;
};

}  // namespace ds4::eval
