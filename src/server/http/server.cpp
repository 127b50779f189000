#include "server/http/server.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/json/serialize.hpp>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "server/http/connection.hpp"
#include "server/http/core.hpp"
#include "server/http/text.hpp"
#include "server/http/transport.hpp"

namespace ds4::server::http {

namespace {

using asio::ip::tcp;
using boost::system::error_code;

// Connections beyond the limit that are told so; those beyond these as well are closed without a word.
constexpr size_t max_refusing = 32;
constexpr std::chrono::milliseconds accept_pause{50};  // after an error, e.g. no file descriptor left

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return fmt::format(fmt::runtime(endpoint.address().is_v6() ? "[{}]:{}" : "{}:{}"), address,
                     endpoint.port());
}

/// Finds out within a minute that a peer disappeared without a word, while nothing is sent to it.
void probe_when_idle(tcp::socket& socket) {
  using Idle = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Count = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  error_code ignored;
  socket.set_option(tcp::socket::keep_alive(true), ignored);
  socket.set_option(Idle(30), ignored);
  socket.set_option(Interval(10), ignored);
  socket.set_option(Count(3), ignored);
}

void admit(const std::shared_ptr<Core>& core, tcp::socket socket) {
  error_code error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  if (error || core->draining) return;
  socket.set_option(tcp::no_delay(true), error);
  probe_when_idle(socket);
  ++core->connections_total;
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(core->mutex);
    const size_t open = core->connections.size();
    const bool refused = open >= core->options.max_connections;
    if (refused) ++core->connections_refused;
    if (refused && (core->tls || open >= core->options.max_connections + max_refusing)) return;
    auto transport = core->tls ? make_tls_transport(std::move(socket), *core->tls)
                               : make_plain_transport(std::move(socket));
    const uint64_t id = ++core->next_connection;
    connection = std::make_shared<Connection>(core, std::move(transport), text_of(peer), id, refused);
    core->connections.emplace(id, connection);
  }
  connection->start();
}

asio::awaitable<void> accept_loop(std::shared_ptr<Core> core, std::shared_ptr<tcp::acceptor> acceptor) {
  asio::steady_timer pause(acceptor->get_executor());
  while (acceptor->is_open()) {
    error_code error;
    tcp::socket socket = co_await acceptor->async_accept(asio::any_io_executor(asio::make_strand(core->io)),
                                                         asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor->is_open()) break;
    if (!error) {
      admit(core, std::move(socket));
    } else {
      pause.expires_after(accept_pause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }
  const std::lock_guard lock(core->mutex);
  --core->acceptors_open;
  core->closed.notify_all();
}

/// Without a connection anybody could make.
Result<void> bind_to(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor.bind(endpoint, error);
  if (error) return fail(ErrorCode::io, "cannot listen on {}: {}", text_of(endpoint), error.message());
  return {};
}

Result<std::shared_ptr<tcp::acceptor>> listen_on(Core& core, const tcp::endpoint& endpoint) {
  auto acceptor = std::make_shared<tcp::acceptor>(asio::any_io_executor(asio::make_strand(core.io)));
  DS4_TRY(bind_to(*acceptor, endpoint));
  error_code error;
  acceptor->listen(tcp::acceptor::max_listen_connections, error);
  if (error) return fail(ErrorCode::io, "cannot listen on {}: {}", text_of(endpoint), error.message());
  return acceptor;
}

Result<tcp::endpoint> endpoint_of(const ServerOptions& options) {
  std::string host = options.host;
  if (equal_ignoring_case(host, "localhost")) host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    return fail(ErrorCode::invalid_argument, "{} is neither an IP address nor localhost",
                quote(options.host));
  }
  return tcp::endpoint{address, options.port};
}

Result<void> check_options(const ServerOptions& options) {
  if (options.tls_certificate_file.empty() != options.tls_key_file.empty()) {
    return fail(ErrorCode::invalid_argument, "TLS needs a certificate file and a key file");
  }
  if (options.io_threads < 1 || options.io_threads > 256 || options.worker_threads < 1 ||
      options.worker_threads > 256 || options.max_connections < 1) {
    return fail(ErrorCode::invalid_argument,
                "the HTTP server needs 1 to 256 threads of each kind and a connection");
  }
  return {};
}

}  // namespace

std::string standard_error_body(std::string_view message) {
  const boost::json::string_view text(message.data(), message.size());
  return R"({"error":{"message":)" + boost::json::serialize(text) + R"(,"type":"invalid_request_error"}})" +
         "\n";
}

struct Server::Impl {
  std::shared_ptr<Core> core;
  std::vector<std::shared_ptr<tcp::acceptor>> acceptors;
  uint16_t port = 0;
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::vector<std::thread> threads;

  Result<void> listen();
};

Result<void> Server::Impl::listen() {
  const ServerOptions& options = core->options;
  const bool by_name = equal_ignoring_case(options.host, "localhost");
  DS4_ASSIGN(const tcp::endpoint endpoint, endpoint_of(options));
  DS4_ASSIGN(auto first, listen_on(*core, endpoint));
  error_code error;
  port = first->local_endpoint(error).port();
  acceptors.push_back(std::move(first));
  if (by_name) {  // clients that try ::1 first; it is no error if the machine has no IPv6
    auto second = listen_on(*core, {asio::ip::address_v6::loopback(), port});
    if (second) acceptors.push_back(std::move(*second));
  }
  return {};
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() {
  stop();
}

Result<void> Server::check(const ServerOptions& options) {
  DS4_TRY(check_options(options));
  DS4_TRY(AccessRules::make(options));
  if (!options.tls_certificate_file.empty()) {
    DS4_TRY(make_tls_context(options.tls_certificate_file, options.tls_key_file));
  }
  DS4_ASSIGN(const tcp::endpoint endpoint, endpoint_of(options));
  asio::io_context io;
  tcp::acceptor acceptor(io);
  return bind_to(acceptor, endpoint);
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Handler handler) {
  DS4_TRY(check_options(options));
  DS4_ASSIGN(AccessRules rules, AccessRules::make(options));
  auto impl = std::make_unique<Impl>();
  impl->core = std::make_shared<Core>(std::move(options), std::move(rules), std::move(handler));
  Core& core = *impl->core;
  if (!core.options.tls_certificate_file.empty()) {
    DS4_ASSIGN(core.tls, make_tls_context(core.options.tls_certificate_file, core.options.tls_key_file));
  }
  DS4_TRY(impl->listen());
  core.acceptors_open = impl->acceptors.size();
  impl->work.emplace(core.io.get_executor());
  for (const auto& acceptor : impl->acceptors) {
    asio::co_spawn(acceptor->get_executor(), accept_loop(impl->core, acceptor), asio::detached);
  }
  for (size_t i = 0; i < core.options.io_threads; ++i) {
    impl->threads.emplace_back([&io = core.io] {
      while (!io.stopped()) {
        try {
          io.run();
        } catch (...) {
          continue;  // out of memory between two coroutines: what it hit is lost, the others go on
        }
      }
    });
  }
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const {
  return impl_->port;
}

Counters Server::counters() const {
  Core& core = *impl_->core;
  Counters counters;
  {
    const std::lock_guard lock(core.mutex);
    counters.connections_open = core.connections.size();
  }
  counters.requests_active = core.requests_active;
  counters.connections = core.connections_total;
  counters.connections_refused = core.connections_refused;
  counters.requests = core.requests_total;
  counters.requests_gone = core.requests_gone;
  counters.bytes_in = core.bytes_in;
  counters.bytes_out = core.bytes_out;
  for (size_t i = 0; i < core.responses_by_class.size(); ++i)
    counters.responses_by_class[i] = core.responses_by_class[i];
  return counters;
}

void Server::stop_accepting() {
  if (impl_->threads.empty()) return;  // stopped
  Core& core = *impl_->core;
  core.draining = true;
  for (const auto& acceptor : impl_->acceptors) {
    asio::post(acceptor->get_executor(), [acceptor] {
      error_code ignored;
      acceptor->close(ignored);
    });
  }
  const std::lock_guard lock(core.mutex);
  for (const auto& [id, connection] : core.connections) connection->drain();
}

bool Server::wait_drained(std::chrono::milliseconds timeout) {
  Core& core = *impl_->core;
  std::unique_lock lock(core.mutex);
  return core.closed.wait_for(lock, timeout,
                              [&] { return core.acceptors_open == 0 && core.connections.empty(); });
}

void Server::stop() {
  if (impl_->threads.empty()) return;
  Core& core = *impl_->core;
  core.stopping = true;
  stop_accepting();
  {
    std::unique_lock lock(core.mutex);
    core.closed.wait(lock, [&] { return core.acceptors_open == 0; });  // none is admitted after this
    for (const auto& [id, connection] : core.connections) connection->abort();
  }
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  core.workers.join();  // after the io threads, which hand work to it
}

}  // namespace ds4::server::http
