// libFuzzer: any bytes as the body of a text completion request. Seeds: tests/fuzz/corpus/completion_body.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/api/fuzz_checks.hpp"
#include "server/api/openai_completions.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::server;
  using namespace ds4::server::api;
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data), size);
  FieldErrors errors;
  const CompletionRequest completion = read_completion_request(request, fuzz_server(), errors);
  if (errors) {
    check_refusal(errors.first());
  } else {
    check_accepted(completion.generation);
  }
  return 0;
}
