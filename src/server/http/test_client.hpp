// A client for tests that controls every byte and every way to leave.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "server/http/text.hpp"

namespace ds4::server::http {

struct ClientResponse {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;       // chunks joined
  bool complete = false;  // the framing was closed properly

  /// Value of a header, "" if it is missing.
  std::string header(std::string_view name) const {
    for (size_t line = head.find("\r\n"); line != std::string::npos; line = head.find("\r\n", line + 2)) {
      const std::string_view rest = std::string_view(head).substr(line + 2);
      const size_t colon = rest.find(':');
      if (colon != rest.npos && equal_ignoring_case(rest.substr(0, colon), name)) {
        return std::string(trimmed(rest.substr(colon + 1, rest.find("\r\n") - colon - 1)));
      }
    }
    return "";
  }
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int family = AF_INET, int receive_buffer = 0) {
    fd_ = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval limit{.tv_sec = 60, .tv_usec = 0};  // only a server that hangs takes so long
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_addr = in6addr_loopback;
    const bool old = family == AF_INET;
    connected_ = ::connect(fd_, old ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6),
                           old ? sizeof v4 : sizeof v6) == 0;
  }
  ~TestClient() { close(); }
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  /// False: the peer does not take it.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void send_slowly(std::string_view bytes, std::chrono::microseconds pause) {
    for (const char c : bytes) {
      send(std::string_view(&c, 1));
      std::this_thread::sleep_for(pause);
    }
  }

  /// False at the end, after a reset, or after 60 s.
  bool receive_some() {
    char buffer[16384];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    if (got > 0) received_.append(buffer, static_cast<size_t>(got));
    ended_ = got == 0;
    return got > 0;
  }
  bool receive_until(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      if (!receive_some()) return false;
    }
    return true;
  }
  /// True if the peer closed, having sent nothing more.
  bool closed_by_peer() { return received_.empty() && !receive_some(); }
  const std::string& received() const { return received_; }
  void forget_received() { received_.clear(); }

  ClientResponse response(bool head_only = false) {
    ClientResponse result;
    if (!receive_until("\r\n\r\n")) return result;
    result.head = take(received_.find("\r\n\r\n") + 2);
    take(2);
    result.status = std::atoi(result.head.c_str() + sizeof("HTTP/1.1"));
    if (head_only || result.status == 204) {
      result.complete = true;
    } else if (result.header("transfer-encoding") == "chunked") {
      read_chunks(result);
    } else if (const std::string length = result.header("content-length"); !length.empty()) {
      const size_t size = std::strtoul(length.c_str(), nullptr, 10);
      while (received_.size() < size && receive_some()) {
      }
      result.complete = received_.size() >= size;
      result.body = take(size);
    } else {
      while (receive_some()) {
      }
      result.complete = ended_;
      result.body = take(received_.size());
    }
    return result;
  }
  ClientResponse ask(std::string_view bytes) {
    send(bytes);
    return response();
  }

  void shutdown_send() { ::shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  /// RST instead of FIN.
  void reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
  }

 private:
  std::string take(size_t bytes) {
    std::string taken = received_.substr(0, bytes);
    received_.erase(0, bytes);
    return taken;
  }
  void read_chunks(ClientResponse& result) {
    while (true) {
      if (!receive_until("\r\n")) return;
      const size_t size = std::strtoul(received_.c_str(), nullptr, 16);
      take(received_.find("\r\n") + 2);
      while (received_.size() < size + 2) {
        if (!receive_some()) return;
      }
      result.body += take(size);
      take(2);
      if (size == 0) break;
    }
    result.complete = true;
  }

  int fd_ = -1;
  bool connected_ = false, ended_ = false;
  std::string received_;
};

/// Waits until `condition` holds; false after `limit`.
inline bool eventually(const std::function<bool()>& condition,
                       std::chrono::milliseconds limit = std::chrono::milliseconds(5000)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline std::string get(std::string_view path, std::string_view headers = {}) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n";
}

inline std::string post(std::string_view path, std::string_view body, std::string_view headers = {}) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(headers) + "\r\n" + std::string(body);
}

}  // namespace ds4::server::http
