#include "output_printer.hpp"

#include <utility>

#include "common/visible_text.hpp"

namespace ds4::cli {

OutputPrinter::OutputPrinter(Sink sink, bool thinking, bool terminal)
    : sink_(std::move(sink)), terminal_(terminal), reasoning_(thinking), splitter_(thinking) {}

bool OutputPrinter::push(std::string_view bytes) {
  return show(splitter_.push(utf8_.push(bytes)));
}

bool OutputPrinter::finish() {
  auto pieces = splitter_.push(utf8_.flush());
  for (auto& piece : splitter_.flush()) pieces.push_back(std::move(piece));
  if (!show(pieces)) return false;
  std::string end;
  if (std::exchange(dimmed_, false)) end += "\x1b[0m";
  if (std::exchange(line_open_, false)) end += '\n';
  return end.empty() || sink_(end);
}

bool OutputPrinter::show(const std::vector<ReasoningSplitter::Piece>& pieces) {
  std::string out;
  const auto leave_reasoning = [&] {
    reasoning_ = false;
    if (std::exchange(dimmed_, false)) out += "\x1b[0m";
    if (line_open_) append(out, "\n");
  };
  for (const auto& piece : pieces) {
    if (reasoning_ && !piece.reasoning) leave_reasoning();
    if (piece.text.empty()) continue;
    if (piece.reasoning && terminal_ && !std::exchange(dimmed_, true)) out += "\x1b[90m";
    append(out, terminal_ ? visible(piece.text, "\n\t") : piece.text);
  }
  if (reasoning_ && !splitter_.in_reasoning()) leave_reasoning();
  return out.empty() || sink_(out);
}

void OutputPrinter::append(std::string& out, std::string_view text) {
  out += text;
  line_open_ = text.back() != '\n';
}

}  // namespace ds4::cli
