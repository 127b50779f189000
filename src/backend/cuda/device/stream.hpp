// A stream and an event that destroy themselves.
#pragma once

#include "backend/cuda/device/cuda_error.hpp"

namespace ds4::cuda {

/// `high`: blocks of its kernels start before those of others that wait.
enum class StreamPriority { usual, high };

/// Does not wait for the default stream.
class Stream {
 public:
  /// Throws CudaFailure.
  explicit Stream(StreamPriority priority = StreamPriority::usual) {
    int usual = 0, high = 0;
    check(cudaDeviceGetStreamPriorityRange(&usual, &high), "stream");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                       priority == StreamPriority::high ? high : usual),
          "stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

enum class EventTimes { none, kept };

class Event {
 public:
  /// Throws CudaFailure.
  explicit Event(EventTimes times = EventTimes::none) {
    check(cudaEventCreateWithFlags(&event_,
                                   times == EventTimes::kept ? cudaEventDefault : cudaEventDisableTiming),
          "event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace ds4::cuda
