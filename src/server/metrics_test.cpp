#include "server/metrics.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace ds4::server {
namespace {

TEST(Metrics, TextFormat) {
  Metrics metrics;
  metrics.counter("ds4_misses_total", "Requests by reason.", "reason=\"busy\"").add();
  metrics.counter("ds4_misses_total", "Requests by reason.", "reason=\"none\"").add(2.5);
  metrics.counter("ds4_misses_total", "Requests by reason.", "reason=\"busy\"").add();
  metrics.gauge("ds4_sessions", "Sessions kept.").set(3);
  metrics.gauge("ds4_queue", "Waiting.", [] { return 7.0; });
  Histogram& seconds = metrics.histogram("ds4_seconds", "Time.", {0.5, 1, 10});
  for (const double value : {0.25, 0.5, 2.0, 100.0}) seconds.observe(value);
  EXPECT_EQ(metrics.render(),
            "# HELP ds4_misses_total Requests by reason.\n# TYPE ds4_misses_total counter\n"
            "ds4_misses_total{reason=\"busy\"} 2\nds4_misses_total{reason=\"none\"} 2.5\n"
            "# HELP ds4_sessions Sessions kept.\n# TYPE ds4_sessions gauge\nds4_sessions 3\n"
            "# HELP ds4_queue Waiting.\n# TYPE ds4_queue gauge\nds4_queue 7\n"
            "# HELP ds4_seconds Time.\n# TYPE ds4_seconds histogram\n"
            "ds4_seconds_bucket{le=\"0.5\"} 2\nds4_seconds_bucket{le=\"1\"} 2\n"
            "ds4_seconds_bucket{le=\"10\"} 3\nds4_seconds_bucket{le=\"+Inf\"} 4\n"
            "ds4_seconds_sum 102.75\nds4_seconds_count 4\n");
}

TEST(Metrics, CountFromSeveralThreads) {
  Metrics metrics;
  Metric& total = metrics.counter("total", "");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) total.add();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(total.value(), 4000);
}

}  // namespace
}  // namespace ds4::server
