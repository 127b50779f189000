#include "common/help_page.hpp"

namespace ds4::cli {
namespace {

constexpr size_t description_column = 28;

}  // namespace

void HelpPage::title(std::string_view text) {
  text_ += fmt::format("\n{}\n", paint("1;38;5;250", text));
}

void HelpPage::line(std::string_view text) {
  text_ += fmt::format("{}\n", text);
}

void HelpPage::entry(const std::string& name, std::string_view description) {
  const bool fits = 4 + name.size() + 2 <= description_column;
  text_ += "    " + paint("38;5;81", name);
  text_ += fits ? std::string(description_column - 4 - name.size(), ' ')
                : "\n" + std::string(description_column, ' ');
  for (const char c : description) {
    text_ += c;
    if (c == '\n') text_ += std::string(description_column, ' ');
  }
  text_ += '\n';
}

std::string HelpPage::paint(std::string_view style, std::string_view text) const {
  return color_ ? fmt::format("\x1b[{}m{}\x1b[0m", style, text) : std::string(text);
}

}  // namespace ds4::cli
