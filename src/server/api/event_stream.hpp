// What the streams of all APIs have in common: server-sent events, and signs of life where nothing else
// comes.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/exchange.hpp"

namespace ds4::server::api {

/// How long a stream may be silent.
inline constexpr std::chrono::milliseconds kKeepaliveInterval{5000};

inline std::string event_text(std::string_view name, std::string_view data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}
/// An event without a name.
inline std::string event_text(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

/// `make_keepalive`: an event that clients of the API understand as a sign of life; see
/// http::Exchange::set_keepalive_maker().
inline void begin_event_stream(http::Exchange& exchange, http::HeaderList headers,
                               std::function<std::string()> make_keepalive) {
  exchange.set_keepalive_maker(std::move(make_keepalive), kKeepaliveInterval);
  exchange.begin_stream(200, "text/event-stream", std::move(headers));
}

/// The last event of a stream that fails.
inline void end_with_error(http::Exchange& exchange, std::string_view error) {
  exchange.write(event_text("error", error));
  exchange.end();
}

}  // namespace ds4::server::api
