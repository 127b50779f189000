#include "ds4/chat.hpp"
#include "text/reply_reader.hpp"

namespace ds4 {

ParsedReply parse_reply(std::string_view text, bool think, bool tools) {
  text::ReplyReader reader({think, tools});
  reader.push(text);
  reader.finish(false);
  return reader.result();
}

}  // namespace ds4
