#include "server/api/ids.hpp"

#include <sys/random.h>

#include <random>
#include <vector>

namespace ds4::server::api {
namespace {

void fill_random(std::vector<unsigned char>& bytes) {
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  if (filled == bytes.size()) return;
  // A kernel without the call. Ids need to differ, they guard nothing.
  std::random_device device;
  for (; filled < bytes.size(); ++filled) bytes[filled] = static_cast<unsigned char>(device());
}

}  // namespace

std::string random_id(std::string_view prefix, size_t hex_digits) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::vector<unsigned char> bytes(hex_digits);
  fill_random(bytes);
  std::string id(prefix);
  for (const unsigned char byte : bytes) id.push_back(kHex[byte & 15]);
  return id;
}

}  // namespace ds4::server::api
