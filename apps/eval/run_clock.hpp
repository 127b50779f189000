// A clock that can be stopped: it counts only while a case runs and the user has not paused it.
#pragma once

#include <chrono>

namespace ds4::eval {

class RunClock {
 public:
  using Clock = std::chrono::steady_clock;

  void start() {
    if (!running_) begin_ = Clock::now();
    running_ = true;
  }
  void stop() {
    counted_ += since_start();
    running_ = false;
  }
  double seconds() const { return std::chrono::duration<double>(counted_ + since_start()).count(); }

 private:
  Clock::duration since_start() const { return running_ ? Clock::now() - begin_ : Clock::duration::zero(); }
  Clock::time_point begin_{};
  Clock::duration counted_{};
  bool running_ = false;
};

}  // namespace ds4::eval
