#include "text/unicode_class.hpp"

#include <utf8proc.h>

#include <array>

namespace ds4::text {
namespace {

/// The White_Space property of Unicode, without CR and LF.
constexpr bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D && c != 0x0A && c != 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

CharacterClass classify(char32_t c) {
  if (c > 0x10FFFF) return CharacterClass::other;
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) return CharacterClass::number;
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME) return CharacterClass::word;
  if (category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO)
    return CharacterClass::punctuation;
  if (c == '\r' || c == '\n') return CharacterClass::newline;
  if (is_space(c)) return CharacterClass::space;
  return CharacterClass::other;
}

// The comparisons above rely on how utf8proc numbers its categories: letters, marks, numbers, punctuation,
// symbols.
static_assert(UTF8PROC_CATEGORY_LU == 1 && UTF8PROC_CATEGORY_LO == 5 && UTF8PROC_CATEGORY_MN == 6 &&
              UTF8PROC_CATEGORY_ME == 8 && UTF8PROC_CATEGORY_ND == 9 && UTF8PROC_CATEGORY_NO == 11 &&
              UTF8PROC_CATEGORY_PC == 12 && UTF8PROC_CATEGORY_PO == 18 && UTF8PROC_CATEGORY_SM == 19 &&
              UTF8PROC_CATEGORY_SO == 22);

constexpr size_t kTableSize = 0x80;

const std::array<CharacterClass, kTableSize>& ascii_classes() {
  static const auto table = [] {
    std::array<CharacterClass, kTableSize> classes{};
    for (char32_t c = 0; c < kTableSize; ++c) classes[c] = classify(c);
    return classes;
  }();
  return table;
}

}  // namespace

CharacterClass character_class(char32_t code_point) {
  if (code_point < kTableSize) return ascii_classes()[code_point];
  return classify(code_point);
}

}  // namespace ds4::text
