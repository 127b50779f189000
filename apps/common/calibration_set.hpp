// The prompts of a calibration file (docs/importance.md §1).
#pragma once

#include <string_view>
#include <vector>

namespace ds4::cli {

/// The texts behind the lines that begin with the marker, each up to the next such line, without white space
/// at both ends; empty ones are left out, and so is what stands before the first marker. A text without
/// markers is one prompt. They point into `text`.
std::vector<std::string_view> calibration_prompts(std::string_view text);

inline constexpr std::string_view calibration_marker = "===== DS4_IMATRIX_PROMPT";

}  // namespace ds4::cli
