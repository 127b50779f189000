// libFuzzer: any bytes as the body of an Anthropic messages request. Seeds: tests/fuzz/corpus/messages_body.
#include <cstddef>
#include <cstdint>

#include "server/api/anthropic_messages.hpp"
#include "server/api/fuzz_checks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::server;
  using namespace ds4::server::api;
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data), size);
  FieldErrors errors;
  const MessagesRequest messages = read_messages_request(request, fuzz_server(), {}, errors);
  if (errors) {
    check_refusal(errors.first());
  } else {
    require(!messages.generation.messages.empty());
    check_accepted(messages.generation);
  }
  return 0;
}
