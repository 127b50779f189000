// Shows a reply while it is generated.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ds4/chat.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::cli {

/// Separates reasoning from the answer by a line break and never splits a UTF-8 character over two writes. On
/// a terminal, reasoning is dimmed and control characters are made visible; elsewhere the bytes are exact.
class OutputPrinter {
 public:
  /// Takes the bytes to show; false if that is no longer possible.
  using Sink = std::function<bool(std::string_view)>;

  /// `thinking`: the prompt ended with an open reasoning tag.
  OutputPrinter(Sink sink, bool thinking, bool terminal);

  /// The bytes of one token. False after a failed write.
  bool push(std::string_view bytes);
  /// Shows what was held back and ends the last line.
  bool finish();

 private:
  bool show(const std::vector<ReasoningSplitter::Piece>& pieces);
  void append(std::string& out, std::string_view text);

  Sink sink_;
  bool terminal_;
  bool dimmed_ = false;
  bool reasoning_;          // the last piece shown was reasoning
  bool line_open_ = false;  // the last byte shown was not a line break
  ReasoningSplitter splitter_;
  Utf8Stream utf8_;
};

}  // namespace ds4::cli
