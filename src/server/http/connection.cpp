// The half of a connection that runs on its strand: requests, reading, writing, deadlines.
#include "server/http/connection.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 does not see that Asio's coroutine frames have an operator new of their own beside this delete.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace ds4::server::http {

namespace {

using boost::system::error_code;
using std::chrono::milliseconds;

// How long a client that was told goodbye may take to read it before the connection is closed.
constexpr milliseconds linger_time{2000};
// A body must arrive at this average rate, after its first body_timeout.
constexpr size_t min_body_bytes_per_second = 1024;
constexpr size_t read_bytes = 16 << 10;
constexpr std::string_view continue_line = "HTTP/1.1 100 Continue\r\n\r\n";

asio::awaitable<void> wait(asio::steady_timer& timer) {
  error_code cancelled;
  co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
}

}  // namespace

/// What a request's body takes of the bytes that all bodies together may have.
class Connection::BodyShare {
 public:
  explicit BodyShare(Core& core) : core_(core) {}
  ~BodyShare() { core_.body_bytes -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  bool grow_to(size_t bytes) {
    const size_t total = core_.body_bytes += bytes - bytes_;
    bytes_ = bytes;
    return total <= core_.options.max_total_body_bytes;
  }

 private:
  Core& core_;
  size_t bytes_ = 0;
};

Connection::Connection(std::shared_ptr<Core> core, std::unique_ptr<Transport> transport, std::string peer,
                       uint64_t id, bool refused)
    : core_(std::move(core)),
      transport_(std::move(transport)),
      peer_(std::move(peer)),
      id_(id),
      refused_(refused),
      request_wake_(transport_->executor(), Clock::time_point::max()),
      read_wake_(transport_->executor(), Clock::time_point::max()),
      write_wake_(transport_->executor(), Clock::time_point::max()),
      watch_(transport_->executor()) {}

void Connection::start() {
  asio::co_spawn(transport_->executor(), guarded(&Connection::serve), asio::detached);
}

void Connection::drain() {
  asio::post(transport_->executor(), [self = shared_from_this()] { self->wake(); });
}

void Connection::abort() {
  asio::post(transport_->executor(), [self = shared_from_this()] { self->drop(); });
}

/// Keeps this alive while `loop` runs. What it may throw is out of memory, which ends the connection.
asio::awaitable<void> Connection::guarded(asio::awaitable<void> (Connection::*loop)()) {
  const std::shared_ptr<Connection> self = shared_from_this();
  bool failed = false;
  try {
    co_await (this->*loop)();
  } catch (...) {
    failed = true;
  }
  if (loop == &Connection::serve) {
    drop();
    const std::lock_guard lock(core_->mutex);
    core_->connections.erase(id_);
    core_->closed.notify_all();
  } else if (failed) {
    drop();
  }
}

asio::awaitable<void> Connection::serve() {
  handshaking_ = true;
  set_read_deadline(Clock::now() + core_->options.header_timeout);
  const error_code error = co_await transport_->handshake();
  handshaking_ = false;
  if (error || closed_) co_return;
  asio::co_spawn(transport_->executor(), guarded(&Connection::read_loop), asio::detached);
  asio::co_spawn(transport_->executor(), guarded(&Connection::write_loop), asio::detached);
  if (refused_) {
    const std::shared_ptr<Answer> answer = begin_answer({});
    answer->keep_alive = false;
    refuse(*answer, {503, "too many connections; try again later"});
    co_await finish_answer(*answer);
  } else {
    bool more = true;
    while (more) more = co_await serve_one();
  }
  co_await linger();
}

/// True: another request may follow.
asio::awaitable<bool> Connection::serve_one() {
  const ServerOptions& options = core_->options;
  RequestReader reader({options.max_header_bytes, options.max_target_bytes, options.max_body_bytes});
  BodyShare share(*core_);
  const Read read = co_await read_request(reader, share);
  set_read_deadline(Clock::time_point::max());
  if (read == Read::closed) co_return false;
  first_request_ = false;

  const std::shared_ptr<Answer> answer = begin_answer(reader.incoming());
  if (read == Read::refused) {
    reader.incoming().request.body = {};
    share.grow_to(0);
    answer->keep_alive = answer->keep_alive && refusal_keeps_alive_;
    refuse(*answer, refusal_);
    co_await finish_answer(*answer);
  } else {
    ++core_->requests_total;
    ++core_->requests_active;
    dispatch(reader.incoming(), answer);
    co_await finish_answer(*answer);
    share.grow_to(0);
    --core_->requests_active;
  }
  co_return !closed_ && answer->keep_alive;
}

asio::awaitable<Connection::Read> Connection::read_request(RequestReader& reader, BodyShare& share) {
  using State = RequestReader::State;
  const ServerOptions& options = core_->options;
  const std::string& body = reader.incoming().request.body;
  Clock::time_point body_began;
  bool header_began = false;
  read_timed_out_ = false;
  set_read_deadline(Clock::now() + (first_request_ ? options.header_timeout : options.idle_timeout));
  while (!closed_) {
    const State before = reader.state();
    const size_t taken = reader.consume(unread());
    take(taken);
    if (reader.state() == State::refused) co_return refuse_with(reader.refusal(), false);
    if (reader.started() && !header_began) {
      header_began = true;
      set_read_deadline(Clock::now() + options.header_timeout);
    }
    if (before == State::header && reader.state() != State::header) {
      if (!accept_header(reader)) co_return Read::refused;
      body_began = last_arrival_ = Clock::now();
    }
    if (!share.grow_to(body.size())) {
      co_return refuse_with({503, "too many large requests at the same time; try again later"}, false);
    }
    if (reader.state() == State::complete) co_return Read::complete;
    if (reader.state() == State::body) {
      const auto earned = std::chrono::seconds(body.size() / min_body_bytes_per_second);
      set_read_deadline(std::min(last_arrival_, body_began + earned) + options.body_timeout);
    }
    if (taken > 0 || reader.state() != before) continue;
    if (at_end_ || (core_->draining && !reader.started())) co_return Read::closed;
    if (core_->draining) co_return refuse_with({503, "the server is shutting down"}, false);
    if (read_timed_out_ && !reader.started()) co_return Read::closed;
    if (read_timed_out_) co_return refuse_with({408, "the request did not arrive in time"}, false);
    co_await wait(request_wake_);
  }
  co_return Read::closed;
}

Connection::Read Connection::refuse_with(Refusal refusal, bool keep_alive) {
  refusal_ = std::move(refusal);
  refusal_keeps_alive_ = keep_alive;
  return Read::refused;
}

/// False: refuse_with() was called.
bool Connection::accept_header(RequestReader& reader) {
  const IncomingRequest& incoming = reader.incoming();
  if (auto refusal = core_->rules.check(incoming)) {
    // With a body, what follows on the connection could not be told apart from it.
    refuse_with(std::move(*refusal), !incoming.has_body);
    return false;
  }
  if (incoming.expects_continue && incoming.has_body && unread().empty()) {
    send_interim(continue_line);
    write_wake_.cancel();
  }
  return true;
}

std::shared_ptr<Answer> Connection::begin_answer(const IncomingRequest& incoming) {
  auto answer = std::make_shared<Answer>();
  answer->http_1_0 = incoming.http_1_0;
  answer->head_only = incoming.request.head_only;
  answer->keep_alive = incoming.keep_alive;
  answer->began = Clock::now();
  answer->began_at_bytes = sent_bytes_;
  answer->record.peer = peer_;
  answer->record.method = incoming.request.head_only ? "HEAD" : incoming.request.method;
  answer->record.path = incoming.request.path;
  answer->record.body_bytes_in = incoming.request.body.size();
  const std::lock_guard lock(mutex_);
  answer->gone = gone_;
  answer_ = answer;
  return answer;
}

void Connection::dispatch(IncomingRequest& incoming, const std::shared_ptr<Answer>& answer) {
  Request& request = incoming.request;
  request.id = answer->record.id = ++core_->next_request;
  request.connection = id_;
  request.peer = peer_;
  if (request.method == "OPTIONS") {
    return respond(*answer,
                   {.status = 204, .content_type = "", .headers = {{"Allow", "GET, HEAD, POST, OPTIONS"}}});
  }
  auto exchange = make_exchange(shared_from_this(), answer);
  try {
    if (core_->options.inline_handler) {
      if (const auto response = core_->options.inline_handler(request)) return respond(*answer, *response);
    }
    asio::post(core_->workers, [core = core_, exchange, request = std::move(request)]() mutable {
      try {
        if (!core->stopping) core->handler(std::move(request), exchange);
      } catch (...) {
        exchange->respond({.status = 500, .body = core->error_body(request.path, 500, "internal error")});
      }
    });
  } catch (...) {
    exchange->respond({.status = 500, .body = core_->error_body(answer->record.path, 500, "internal error")});
  }
}

void Connection::refuse(Answer& answer, const Refusal& refusal) {
  Response response{.status = refusal.status};
  response.body = core_->error_body(answer.record.path, refusal.status, refusal.message);
  if (refusal.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (refusal.status == 503) response.headers.emplace_back("Retry-After", "1");
  respond(answer, response);
}

/// Waits until the answer is complete and sent, or nothing can be sent any more.
asio::awaitable<void> Connection::finish_answer(Answer& answer) {
  while (true) {
    bool done = closed_;
    if (!done) {
      const std::lock_guard lock(mutex_);
      done = answer.phase == Answer::Phase::complete && pending_.empty() && sending_bytes_ == 0;
    }
    if (done) break;
    co_await wait(request_wake_);
  }
  AccessRecord& record = answer.record;
  {
    const std::lock_guard lock(mutex_);
    answer_.reset();
    record.status = answer.status;
  }
  record.gone = answer.gone;
  if (record.gone && record.status == 0) record.status = 499;
  record.bytes_out = sent_bytes_ - answer.began_at_bytes;
  record.duration = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - answer.began);
  if (record.gone) ++core_->requests_gone;
  const auto status_class = static_cast<size_t>(record.status / 100);
  if (status_class > 0 && status_class < core_->responses_by_class.size())
    ++core_->responses_by_class[status_class];
  if (core_->options.on_answered) core_->options.on_answered(record);
}

/// Closes such that the last answer arrives: a socket closed with unread input would reset the connection.
asio::awaitable<void> Connection::linger() {
  while (!closed_ && !output_is_empty()) co_await wait(request_wake_);
  if (closed_ || at_end_) co_return;
  discarding_ = true;
  take(unread().size());
  transport_->shutdown_send(shared_from_this());
  read_timed_out_ = false;
  set_read_deadline(Clock::now() + linger_time);
  while (!closed_ && !at_end_ && !read_timed_out_) co_await wait(request_wake_);
}

/// Reads also while a request is being answered, because that is how a client that leaves is noticed; what it
/// sends meanwhile is kept, up to the size of one header.
asio::awaitable<void> Connection::read_loop() {
  std::array<char, read_bytes> buffer;
  const size_t inbox_limit = core_->options.max_header_bytes + read_bytes;
  while (!closed_) {
    if (unread().size() >= inbox_limit) {
      co_await wait(read_wake_);
      continue;
    }
    const Transport::Moved moved = co_await transport_->read_some(asio::buffer(buffer));
    if (closed_) co_return;
    if (moved.error) {
      at_end_ = true;
      if (moved.error != asio::error::eof) co_return drop();
      mark_gone();
      request_wake_.cancel();
      co_return;
    }
    core_->bytes_in += moved.bytes;
    last_arrival_ = Clock::now();
    if (discarding_) continue;
    inbox_.append(buffer.data(), moved.bytes);
    request_wake_.cancel();
  }
}

asio::awaitable<void> Connection::write_loop() {
  while (!closed_) {
    std::string sending;
    {
      const std::lock_guard lock(mutex_);
      sending.swap(pending_);
      sending_bytes_ = sending.size();
    }
    if (sending.empty()) {
      request_wake_.cancel();
      co_await wait(write_wake_);
      continue;
    }
    std::string_view rest = sending;
    while (!rest.empty()) {
      write_deadline_ = Clock::now() + core_->options.write_stall_timeout;
      watch();
      const Transport::Moved moved = co_await transport_->write_some(asio::buffer(rest.data(), rest.size()));
      write_deadline_ = Clock::time_point::max();
      if (closed_) co_return;
      if (moved.error) co_return drop();
      rest.remove_prefix(moved.bytes);
      sent_bytes_ += moved.bytes;
      core_->bytes_out += moved.bytes;
      const std::lock_guard lock(mutex_);
      sending_bytes_ = rest.size();
    }
  }
}

void Connection::take(size_t bytes) {
  if (bytes == 0) return;
  inbox_begin_ += bytes;
  if (inbox_begin_ == inbox_.size()) {
    inbox_.clear();
    inbox_begin_ = 0;
  } else if (inbox_begin_ > inbox_.size() / 2) {
    inbox_.erase(0, inbox_begin_);
    inbox_begin_ = 0;
  }
  read_wake_.cancel();
}

void Connection::wake() {
  request_wake_.cancel();
  read_wake_.cancel();
  write_wake_.cancel();
}

void Connection::mark_gone() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    if (answer_ && answer_->phase != Answer::Phase::complete) {
      answer_->gone = true;
      callback = std::exchange(answer_->on_gone, nullptr);
    }
  }
  if (callback) callback();
}

void Connection::drop() {
  if (closed_) return;
  closed_ = true;
  {
    const std::lock_guard lock(mutex_);
    dropped_ = true;
    pending_.clear();
  }
  transport_->close();
  watch_.cancel();
  wake();
  mark_gone();
}

void Connection::set_read_deadline(Clock::time_point deadline) {
  read_deadline_ = deadline;
  watch();
}

/// Arms the timer for the earliest deadline, unless it fires before that anyway.
void Connection::watch() {
  if (closed_) return;
  const Clock::time_point earliest = std::min({read_deadline_, write_deadline_, keepalive_due()});
  if (earliest >= watch_until_) return;
  watch_until_ = earliest;
  watch_.expires_at(earliest);
  watch_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->on_watch();
  });
}

void Connection::on_watch() {
  if (closed_) return;
  watch_until_ = Clock::time_point::max();
  const Clock::time_point now = Clock::now();
  if (now >= write_deadline_ || (handshaking_ && now >= read_deadline_)) return drop();
  if (now >= read_deadline_) {
    read_deadline_ = Clock::time_point::max();
    read_timed_out_ = true;
    request_wake_.cancel();
  }
  if (send_keepalive_if_due(now)) write_wake_.cancel();
  watch();
}

}  // namespace ds4::server::http
