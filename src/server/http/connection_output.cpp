// The half of a connection that exchanges call from any thread.
#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "server/http/connection.hpp"
#include "server/http/response_text.hpp"
#include "server/http/text.hpp"

namespace ds4::server::http {

namespace {

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, std::shared_ptr<Answer> answer)
      : connection_(std::move(connection)), answer_(std::move(answer)) {}
  ~ConnectionExchange() override { connection_->abandon(*answer_); }
  ConnectionExchange(const ConnectionExchange&) = delete;
  ConnectionExchange& operator=(const ConnectionExchange&) = delete;

  void respond(Response response) override { connection_->respond(*answer_, response); }
  void begin_stream(int status, std::string content_type, HeaderList headers) override {
    connection_->begin_stream(*answer_, status, content_type, std::move(headers));
  }
  void write(std::string bytes) override { connection_->write(*answer_, bytes); }
  void end() override { connection_->end(*answer_); }
  void set_keepalive_maker(std::function<std::string()> make, std::chrono::milliseconds interval) override {
    connection_->set_keepalive(*answer_, std::move(make), interval);
  }
  bool gone() const override { return answer_->gone.load(); }
  void on_gone(std::function<void()> callback) override {
    connection_->set_on_gone(*answer_, std::move(callback));
  }
  size_t queued_bytes() const override { return connection_->queued_bytes(); }

 private:
  const std::shared_ptr<Connection> connection_;
  const std::shared_ptr<Answer> answer_;
};

}  // namespace

std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Connection> connection,
                                        std::shared_ptr<Answer> answer) {
  return std::make_shared<ConnectionExchange>(std::move(connection), std::move(answer));
}

void Connection::respond(Answer& answer, const Response& response) {
  std::function<void()> callback;  // destroyed after the mutex is released: it may own an exchange
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase != Answer::Phase::waiting) return;
    append_head(answer, response.status, response.content_type, response.headers, response.body.size());
    if (!dropped_ && !answer.head_only && !has_no_body(response.status)) pending_ += response.body;
    callback = complete(answer);
  }
  wake_from_anywhere();
}

void Connection::begin_stream(Answer& answer, int status, std::string_view content_type, HeaderList headers) {
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase != Answer::Phase::waiting) return;
    const bool has_cache_control = std::any_of(headers.begin(), headers.end(), [](const auto& header) {
      return equal_ignoring_case(header.first, "cache-control");
    });
    if (!has_cache_control) headers.emplace_back("Cache-Control", "no-cache");
    answer.chunked = !answer.http_1_0;
    if (!answer.chunked) answer.keep_alive = false;
    append_head(answer, status, content_type, headers, std::nullopt);
    answer.phase = Answer::Phase::streaming;
    answer.last_write = Clock::now();
  }
  wake_from_anywhere();
}

void Connection::write(Answer& answer, std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase != Answer::Phase::streaming || answer.head_only || bytes.empty() || dropped_) return;
    answer.last_write = Clock::now();
    if (pending_.size() + sending_bytes_ + bytes.size() > core_->options.max_queued_bytes) {
      dropped_ = gone_ = true;
      answer.gone = true;
      pending_.clear();
      asio::post(transport_->executor(), [self = shared_from_this()] { self->drop(); });
      return;
    }
    append_body(answer, bytes);
  }
  wake_from_anywhere();
}

void Connection::end(Answer& answer) {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase != Answer::Phase::streaming) return;
    if (answer.chunked && !answer.head_only && !dropped_) pending_ += last_chunk;
    callback = complete(answer);
  }
  wake_from_anywhere();
}

/// Nobody holds the exchange any more. A stream ends without its last chunk, which tells the client; one that
/// left itself gets nothing.
void Connection::abandon(Answer& answer) {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase == Answer::Phase::complete) return;
    if (answer.phase == Answer::Phase::streaming || answer.gone) {
      answer.keep_alive = false;
      callback = complete(answer);
    }
  }
  Response response{.status = 500};
  response.body = core_->error_body(answer.record.path, 500, "the server failed to answer this request");
  respond(answer, response);
  wake_from_anywhere();
}

void Connection::set_keepalive(Answer& answer, std::function<std::string()> make,
                               std::chrono::milliseconds interval) {
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase == Answer::Phase::complete) return;
    answer.keepalive.swap(make);  // the old one is destroyed after the mutex is released
    answer.keepalive_interval = interval;
  }
  wake_from_anywhere();
}

void Connection::set_on_gone(Answer& answer, std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (answer.phase == Answer::Phase::complete) return;
    if (!answer.gone) {
      answer.on_gone.swap(callback);
      return;
    }
  }
  if (callback) callback();
}

size_t Connection::queued_bytes() {
  const std::lock_guard lock(mutex_);
  return pending_.size() + sending_bytes_;
}

bool Connection::output_is_empty() {
  return queued_bytes() == 0;
}

Connection::Clock::time_point Connection::keepalive_due() {
  const std::lock_guard lock(mutex_);
  if (!answer_ || answer_->phase != Answer::Phase::streaming || answer_->head_only || !answer_->keepalive ||
      answer_->keepalive_interval.count() <= 0) {
    return Clock::time_point::max();
  }
  return answer_->last_write + answer_->keepalive_interval;
}

/// Not while earlier bytes still wait: the client has something to read then, and nothing should pile up.
bool Connection::send_keepalive_if_due(Clock::time_point now) {
  if (now < keepalive_due()) return false;
  const std::lock_guard lock(mutex_);
  if (!answer_ || answer_->phase != Answer::Phase::streaming) return false;
  answer_->last_write = now;
  if (!pending_.empty() || sending_bytes_ > 0 || dropped_) return false;
  const std::string bytes = answer_->keepalive();
  if (!bytes.empty()) append_body(*answer_, bytes);
  return !bytes.empty();
}

void Connection::send_interim(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (!dropped_) pending_ += bytes;
}

/// Lets the strand look at what changed. Many calls before it gets there cost one.
void Connection::wake_from_anywhere() {
  {
    const std::lock_guard lock(mutex_);
    if (dropped_ || wake_posted_) return;
    wake_posted_ = true;
    // Inside the lock: drop(), which sets dropped_, cannot be the last thing that the strand does before
    // this.
    asio::post(transport_->executor(), [self = shared_from_this()] {
      {
        const std::lock_guard inner(self->mutex_);
        self->wake_posted_ = false;
      }
      self->wake();
      self->watch();
    });
  }
}

void Connection::append_head(Answer& answer, int status, std::string_view content_type,
                             const HeaderList& headers, std::optional<size_t> body_bytes) {
  answer.status = status;
  if (core_->draining) answer.keep_alive = false;
  HeadOptions options{.http_1_0 = answer.http_1_0,
                      .keep_alive = answer.keep_alive,
                      .cors_origin = core_->options.cors_origin};
  if (has_no_body(status)) {
    options.framing = Framing::none;
  } else if (body_bytes) {
    options.body_bytes = *body_bytes;
  } else {
    options.framing = answer.chunked ? Framing::chunked : Framing::until_close;
  }
  if (!dropped_) pending_ += response_head(status, content_type, headers, options);
}

void Connection::append_body(const Answer& answer, std::string_view bytes) {
  if (answer.chunked) {
    append_chunk(pending_, bytes);
  } else {
    pending_ += bytes;
  }
}

/// Returns the callback, to be destroyed by the caller outside the mutex.
std::function<void()> Connection::complete(Answer& answer) {
  answer.phase = Answer::Phase::complete;
  answer.keepalive = nullptr;
  return std::exchange(answer.on_gone, nullptr);
}

}  // namespace ds4::server::http
