// libFuzzer: any bytes as the body of a responses request. Seeds: tests/fuzz/corpus/responses_body.
#include <cstddef>
#include <cstdint>

#include "server/api/fuzz_checks.hpp"
#include "server/api/openai_responses.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ds4::server;
  using namespace ds4::server::api;
  ResponseStore store;
  store.put("resp_1", {{ds4::ChatMessage{}}, "{}"});
  http::Request request;
  request.body.assign(reinterpret_cast<const char*>(data), size);
  FieldErrors errors;
  const ResponsesRequest responses = read_responses_request(request, fuzz_server(), store, errors);
  if (errors) {
    check_refusal(errors.first());
    return 0;
  }
  require(!responses.generation.messages.empty());
  check_accepted(responses.generation);
  for (const Tool& tool : responses.generation.tools) require(responses.tools.contains(tool.name));
  return 0;
}
