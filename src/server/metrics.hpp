// Counters of the running server, in the text format of Prometheus.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ds4::server {

/// A number that changes; thread-safe.
class Metric {
 public:
  void add(double amount = 1) {
    double seen = value_.load(std::memory_order_relaxed);
    while (!value_.compare_exchange_weak(seen, seen + amount, std::memory_order_relaxed)) {
    }
  }
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

/// Counts values by size; thread-safe.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);

 private:
  friend class Metrics;
  std::vector<double> bounds_;  // upper, ascending; one more count for what exceeds them
  std::deque<Metric> counts_;
  Metric sum_;
};

/// All metrics of a process. Those it hands out live as long as it does.
class Metrics {
 public:
  /// `labels`: like `reason="busy"`, or empty. Metrics of one name share help and type.
  Metric& counter(std::string_view name, std::string_view help, std::string_view labels = {});
  Metric& gauge(std::string_view name, std::string_view help, std::string_view labels = {});
  Histogram& histogram(std::string_view name, std::string_view help, std::vector<double> bounds);
  /// `read` is called by render().
  void gauge(std::string_view name, std::string_view help, std::function<double()> read);

  /// text/plain; version=0.0.4
  std::string render() const;

 private:
  struct Sample {
    std::string labels;
    Metric metric;
    std::function<double()> read;
  };
  struct Family {
    std::string name, help, type;
    std::deque<Sample> samples;
    std::unique_ptr<Histogram> histogram;
  };

  Family& family(std::string_view name, std::string_view help, std::string_view type);
  Metric& sample(std::string_view name, std::string_view help, std::string_view type,
                 std::string_view labels);

  mutable std::mutex mutex_;
  std::deque<Family> families_;
};

}  // namespace ds4::server
