// The layout of help pages.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>

#include "common/option_table.hpp"

namespace ds4::cli {

class HelpPage {
 public:
  explicit HelpPage(bool color) : color_(color) {}

  void title(std::string_view text);
  void line(std::string_view text);
  /// A name in the left column and its description, which may have several lines, in the right one.
  void entry(const std::string& name, std::string_view description);
  /// The options of one section under a title.
  template <class Options, class Section>
  void options(std::string_view heading, std::span<const OptionRow<Options, Section>> rows, Section section) {
    title(heading);
    for (const auto& row : rows) {
      if (row.section != section) continue;
      std::string name =
          row.short_name[0] != '\0' ? fmt::format("{}, {}", row.short_name, row.name) : row.name;
      if (row.value != nullptr) name += fmt::format(" {}", row.value);
      entry(name, row.help);
    }
  }
  std::string take() { return std::move(text_); }

 private:
  std::string paint(std::string_view style, std::string_view text) const;
  bool color_;
  std::string text_;
};

}  // namespace ds4::cli
