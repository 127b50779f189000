// The JSON text of diagnostic files (docs/cli.md, "Diagnostic files").
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ds4/token.hpp"

namespace ds4::cli {

/// A JSON string of bytes from a token. Text that is not valid UTF-8 has every byte from 0x80 on as \u00xx.
std::string json_string(std::string_view bytes);
/// {"id":N,"text":"...","bytes":[...]}; `bytes` is exact where `text` cannot be.
std::string json_token(Token id, std::string_view bytes);
/// 9 significant digits; null for what JSON has no number for.
std::string json_number(float value);

}  // namespace ds4::cli
