#include "server/http/access_rules.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "server/http/text.hpp"

namespace ds4::server::http {

namespace {

bool is_ipv4(std::string_view text) {
  in_addr address{};
  return inet_pton(AF_INET, std::string(text).c_str(), &address) == 1;
}

bool is_ipv6(std::string_view text) {
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(text).c_str(), &address) == 1;
}

std::string_view without_brackets(std::string_view host) {
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

/// The host of "host:port", "[v6]:port" or "host"; nullopt if it is none of these.
std::optional<std::string_view> host_of(std::string_view authority) {
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == std::string_view::npos) return std::nullopt;
  const size_t end = std::min(authority.find(':', bracket), authority.size());
  if (bracket > 0 && end != bracket + 1) return std::nullopt;
  const std::string_view port = authority.substr(std::min(end + 1, authority.size()));
  if (!std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return std::nullopt;
  if (end == 0) return std::nullopt;
  return authority.substr(0, end);
}

}  // namespace

bool is_loopback_host(std::string_view host) {
  host = without_brackets(host);
  if (equal_ignoring_case(host, "localhost")) return true;
  if (is_ipv4(host)) return host.starts_with("127.");
  in6_addr address{};
  return inet_pton(AF_INET6, std::string(host).c_str(), &address) == 1 && IN6_IS_ADDR_LOOPBACK(&address);
}

Result<AccessRules> AccessRules::make(const ServerOptions& options) {
  AccessRules rules;
  for (const std::string& key : options.api_keys) {
    const bool visible = std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (key.empty() || !visible) {
      return fail(ErrorCode::invalid_argument, "an API key must be one or more visible ASCII characters");
    }
    Digest digest;
    SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
    rules.keys_.push_back(digest);
  }
  if (rules.keys_.empty() && !options.allow_unauthenticated && !is_loopback_host(options.host)) {
    return fail(ErrorCode::invalid_argument,
                "refusing to listen on {} without an API key, because everybody who reaches this address "
                "could use the "
                "server; give a key, or say explicitly that none is wanted",
                quote(options.host));
  }
  rules.hosts_ = options.allowed_hosts;
  rules.hosts_.push_back(options.host);
  rules.public_paths_ = options.public_paths;
  rules.cors_origin_ = options.cors_origin;
  return rules;
}

std::optional<Refusal> AccessRules::check(const IncomingRequest& incoming) const {
  const Request& request = incoming.request;
  const bool has_host = !incoming.http_1_0 || !incoming.authority.empty();
  if (has_host && !host_allowed(incoming.authority)) {
    return Refusal{403, "the Host header names " + quote(incoming.authority) +
                            ", which is not a name of this server; an allowed host must be added if it is"};
  }
  if (request.method == "OPTIONS") return std::nullopt;  // browsers ask without a key first
  const auto origin = request.header("origin");
  if (origin && !origin_allowed(*origin, incoming.authority)) {
    return Refusal{
        403, "web pages from " + quote(*origin) + " may not use this server unless CORS is switched on"};
  }
  const bool is_public =
      std::find(public_paths_.begin(), public_paths_.end(), request.path) != public_paths_.end();
  if (!keys_.empty() && !is_public && !key_allowed(request)) {
    return Refusal{401, "a valid API key is needed, as Authorization: Bearer KEY or x-api-key: KEY"};
  }
  return std::nullopt;
}

bool AccessRules::host_allowed(std::string_view authority) const {
  const auto host = host_of(authority);
  if (host && (is_loopback_host(*host) || is_ipv4(*host))) return true;
  if (host && host->front() == '[' && is_ipv6(without_brackets(*host))) return true;
  return std::any_of(hosts_.begin(), hosts_.end(), [&](const std::string& allowed) {
    return allowed == "*" || equal_ignoring_case(allowed, authority) ||
           (host && equal_ignoring_case(allowed, *host));
  });
}

bool AccessRules::origin_allowed(std::string_view origin, std::string_view authority) const {
  if (cors_origin_ == "*" || origin == cors_origin_) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && equal_ignoring_case(origin.substr(scheme + 3), authority);
}

bool AccessRules::key_allowed(const Request& request) const {
  static constexpr std::string_view bearer = "Bearer ";
  bool allowed = false;
  const auto present = [&](std::string_view key) {
    Digest digest;
    SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
    for (const Digest& known : keys_)
      allowed |= CRYPTO_memcmp(digest.data(), known.data(), digest.size()) == 0;
  };
  const auto authorization = request.header("authorization");
  if (authorization && authorization->size() > bearer.size() &&
      equal_ignoring_case(authorization->substr(0, bearer.size()), bearer)) {
    present(trimmed(authorization->substr(bearer.size())));
  }
  if (const auto key = request.header("x-api-key")) present(*key);
  return allowed;
}

}  // namespace ds4::server::http
