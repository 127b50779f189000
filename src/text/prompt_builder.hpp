// Collects a prompt piece by piece, keeping apart what the engine wrote and what came from outside.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "ds4/chat.hpp"

namespace ds4::text {

class PromptBuilder {
 public:
  void trusted(std::string_view text) { append(text, true); }
  void untrusted(std::string_view text) { append(text, false); }
  void append(const std::vector<PromptSpan>& spans) {
    for (const PromptSpan& span : spans) append(span.text, span.trusted);
  }
  size_t size_bytes() const { return size_bytes_; }
  RenderedPrompt take() { return std::exchange(prompt_, {}); }

 private:
  void append(std::string_view text, bool trusted) {
    if (text.empty()) return;
    size_bytes_ += text.size();
    if (prompt_.spans.empty() || prompt_.spans.back().trusted != trusted)
      prompt_.spans.push_back({{}, trusted});
    prompt_.spans.back().text += text;
  }

  RenderedPrompt prompt_;
  size_t size_bytes_ = 0;
};

}  // namespace ds4::text
