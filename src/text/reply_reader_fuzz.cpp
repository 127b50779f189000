// libFuzzer: any bytes as a reply, cut anywhere. The first byte says how it is read. Seeds:
// tests/fuzz/corpus/reply_reader.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/reply_reader.hpp"

namespace {

using ds4::text::ReplyEvent;
using ds4::text::ReplyReader;
using ds4::text::ReplyReaderOptions;

/// Every event as one text, neighbours of a kind joined.
struct Transcript {
  std::string text;
  ReplyEvent::Kind kind = ReplyEvent::Kind::block_end;
  size_t call = 0;

  void add(const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) {
      const bool streams = event.kind == ReplyEvent::Kind::reasoning ||
                           event.kind == ReplyEvent::Kind::content ||
                           event.kind == ReplyEvent::Kind::call_arguments;
      if (!streams || event.kind != kind || event.call != call) {
        text += '\1' + std::to_string(static_cast<int>(event.kind)) + '.' + std::to_string(event.call) + '\2';
      }
      kind = event.kind;
      call = event.call;
      text += event.text;
    }
  }
};

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const ReplyReaderOptions options{(data[0] & 1) != 0, (data[0] & 2) != 0};
  const bool cut = (data[0] & 4) != 0;
  const size_t stride = 1 + (data[0] >> 3);
  const std::string_view reply(reinterpret_cast<const char*>(data + 1), size - 1);

  ReplyReader whole(options);
  Transcript at_once;
  at_once.add(whole.push(reply));
  at_once.add(whole.finish(cut));

  ReplyReader stepwise(options);
  Transcript in_steps;
  for (size_t at = 0; at < reply.size(); at += stride) in_steps.add(stepwise.push(reply.substr(at, stride)));
  in_steps.add(stepwise.finish(cut));
  require(in_steps.text == at_once.text);

  const ds4::ParsedReply& result = whole.result();
  require(result.content == stepwise.result().content && result.reasoning == stepwise.result().reasoning);
  require(result.tool_block == stepwise.result().tool_block);
  require(result.tool_fault_reason == stepwise.result().tool_fault_reason);
  require(result.malformed_tools == !result.tool_fault_reason.empty());
  if (options.tools) {
    require(result.content.find("<｜DSML｜tool_calls") == std::string::npos);
  } else {
    require(result.tool_calls.empty() && result.reasoning.size() + result.content.size() <= reply.size());
  }
  return 0;
}
