// Who may ask: Host and Origin against web pages that reach into the local network, keys against everybody
// else.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ds4/error.hpp"
#include "server/http/request_reader.hpp"
#include "server/http/server.hpp"

namespace ds4::server::http {

class AccessRules {
 public:
  /// Fails on keys that make no sense, and on an address open to others without a key.
  static Result<AccessRules> make(const ServerOptions& options);

  /// Why the request is refused: 403 for a Host or Origin that is not ours, 401 without a valid key. A name
  /// that an attacker's DNS points at this machine fails the Host check; IP addresses and loopback names
  /// cannot be forged that way and always pass.
  std::optional<Refusal> check(const IncomingRequest& incoming) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  bool host_allowed(std::string_view authority) const;
  bool origin_allowed(std::string_view origin, std::string_view authority) const;
  bool key_allowed(const Request& request) const;

  std::vector<std::string> hosts_;
  std::vector<std::string> public_paths_;
  std::string cors_origin_;
  std::vector<Digest> keys_;  // SHA-256: keys of any length compare in constant time
};

/// "127.0.0.1", "::1" (with or without brackets) and the like, and "localhost".
bool is_loopback_host(std::string_view host);

}  // namespace ds4::server::http
