// The text that is measured when the user gives none.
#pragma once

#include <cstddef>
#include <string>

namespace ds4::bench {

/// Plain English prose of at least `bytes` bytes, in chapters and paragraphs: the chronicle of a harbour town
/// that was never there, made from sentences written for this program. The same everywhere, and a longer text
/// begins with every shorter one.
std::string builtin_text(size_t bytes);

}  // namespace ds4::bench
