// One client connection: reads requests one after another, hands them on, sends the answers in order, and
// notices when the client leaves, sends too slowly or takes too slowly.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http/core.hpp"
#include "server/http/exchange.hpp"
#include "server/http/request_reader.hpp"
#include "server/http/transport.hpp"

namespace ds4::server::http {

/// The state of one answer: `gone` is for any thread, `record` for the strand (its path is constant), the
/// rest is guarded by the connection's mutex.
struct Answer {
  enum class Phase { waiting, streaming, complete };
  using Clock = std::chrono::steady_clock;

  Phase phase = Phase::waiting;
  bool http_1_0 = false, head_only = false;
  bool keep_alive = true;  // what the client and the request allow; final once the head is written
  bool chunked = false;
  int status = 0;
  std::function<std::string()> keepalive;  // owns no exchange
  std::chrono::milliseconds keepalive_interval{0};
  Clock::time_point last_write;
  std::function<void()> on_gone;

  std::atomic<bool> gone = false;

  AccessRecord record;
  Clock::time_point began;
  uint64_t began_at_bytes = 0;
};

/// Three coroutines on one strand (requests, reading, writing) and one timer for all deadlines. The calls of
/// exchanges come from any thread: they touch only what the mutex guards, and wake the strand.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `refused`: one connection too many, to be told so and closed.
  Connection(std::shared_ptr<Core> core, std::unique_ptr<Transport> transport, std::string peer, uint64_t id,
             bool refused);

  void start();
  /// After Core::draining was set: closes if no request is under way. Any thread, as abort().
  void drain();
  /// Closes whatever is under way.
  void abort();

  // What an Exchange does; see there.
  void respond(Answer& answer, const Response& response);
  void begin_stream(Answer& answer, int status, std::string_view content_type, HeaderList headers);
  void write(Answer& answer, std::string_view bytes);
  void end(Answer& answer);
  void abandon(Answer& answer);
  void set_keepalive(Answer& answer, std::function<std::string()> make, std::chrono::milliseconds interval);
  void set_on_gone(Answer& answer, std::function<void()> callback);
  size_t queued_bytes();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Read { complete, refused, closed };
  class BodyShare;

  // connection.cpp: on the strand.
  asio::awaitable<void> guarded(asio::awaitable<void> (Connection::*loop)());
  asio::awaitable<void> serve();
  asio::awaitable<bool> serve_one();
  asio::awaitable<Read> read_request(RequestReader& reader, BodyShare& share);
  asio::awaitable<void> finish_answer(Answer& answer);
  asio::awaitable<void> linger();
  asio::awaitable<void> read_loop();
  asio::awaitable<void> write_loop();
  bool accept_header(RequestReader& reader);
  std::shared_ptr<Answer> begin_answer(const IncomingRequest& incoming);
  void dispatch(IncomingRequest& incoming, const std::shared_ptr<Answer>& answer);
  void refuse(Answer& answer, const Refusal& refusal);
  Read refuse_with(Refusal refusal, bool keep_alive);
  std::string_view unread() const { return std::string_view(inbox_).substr(inbox_begin_); }
  void take(size_t bytes);
  void wake();
  void mark_gone();
  void drop();
  void set_read_deadline(Clock::time_point deadline);
  void watch();
  void on_watch();

  // connection_output.cpp
  bool output_is_empty();
  bool send_keepalive_if_due(Clock::time_point now);
  Clock::time_point keepalive_due();
  void send_interim(std::string_view bytes);
  void wake_from_anywhere();
  // Under mutex_.
  void append_head(Answer& answer, int status, std::string_view content_type, const HeaderList& headers,
                   std::optional<size_t> body_bytes);
  std::function<void()> complete(Answer& answer);
  void append_body(const Answer& answer, std::string_view bytes);

  const std::shared_ptr<Core> core_;  // first: the transport's io_context lives in it
  const std::unique_ptr<Transport> transport_;
  const std::string peer_;
  const uint64_t id_;
  const bool refused_;

  // On the strand only.
  asio::steady_timer request_wake_, read_wake_, write_wake_;  // never expire: cancelled to wake a coroutine
  asio::steady_timer watch_;                                  // fires at the earliest deadline or before
  Clock::time_point watch_until_ = Clock::time_point::max();
  Clock::time_point read_deadline_ = Clock::time_point::max(), write_deadline_ = Clock::time_point::max();
  Clock::time_point last_arrival_;
  std::string inbox_;  // read, and from inbox_begin_ on not understood yet
  size_t inbox_begin_ = 0;
  bool handshaking_ = false;
  bool read_timed_out_ = false;
  bool at_end_ = false;      // the peer sends nothing more
  bool discarding_ = false;  // what it sends is of no interest
  bool closed_ = false;
  bool first_request_ = true;
  uint64_t sent_bytes_ = 0;
  Refusal refusal_;  // after Read::refused
  bool refusal_keeps_alive_ = false;

  std::mutex mutex_;
  std::string pending_;       // not taken by write_loop() yet
  size_t sending_bytes_ = 0;  // taken by it, and not by the socket yet
  bool dropped_ = false;      // nothing more goes out
  bool gone_ = false;
  bool wake_posted_ = false;
  std::shared_ptr<Answer> answer_;  // the one under way
};

/// The exchange of `answer`.
std::shared_ptr<Exchange> make_exchange(std::shared_ptr<Connection> connection,
                                        std::shared_ptr<Answer> answer);

}  // namespace ds4::server::http
