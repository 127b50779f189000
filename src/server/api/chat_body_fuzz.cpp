// libFuzzer: any bytes as the body of a chat request. Seeds: tests/fuzz/corpus/chat_body.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/api/fuzz_checks.hpp"
#include "server/api/openai_chat.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::server;
  using namespace ds4::server::api;
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data), size);
  FieldErrors errors;
  const ChatRequest chat = read_chat_request(request, fuzz_server(), errors);
  if (errors) {
    check_refusal(errors.first());
  } else if (chat.generation.messages.empty()) {
    std::abort();
  } else {
    check_accepted(chat.generation);
  }
  return 0;
}
