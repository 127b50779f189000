// A server whose requests wait until the test answers them.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "server/http/server.hpp"

namespace ds4::server::http {

class HeldExchanges {
 public:
  struct Held {
    Request request;
    std::shared_ptr<Exchange> exchange;
  };

  Handler handler() {
    return [this](Request request, std::shared_ptr<Exchange> exchange) {
      const std::lock_guard lock(mutex_);
      held_.push_back({std::move(request), std::move(exchange)});
      arrived_.notify_all();
    };
  }
  /// The next request, in order of arrival at the handler.
  Held next() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::seconds(10), [&] { return !held_.empty(); })) {
      throw std::runtime_error("no request came");
    }
    Held held = std::move(held_.front());
    held_.pop_front();
    return held;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Held> held_;
};

/// A server on a port of its own.
class HeldServerTest : public ::testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    options.port = 0;
    auto started = Server::start(std::move(options), held_.handler());
    ASSERT_TRUE(started) << started.error().message;
    server_ = std::move(*started);
  }

  HeldExchanges held_;
  std::unique_ptr<Server> server_;
};

}  // namespace ds4::server::http
