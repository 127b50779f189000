// JSON values as texts of one form, and what schemas ask about them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "grammar/schema.hpp"

namespace ds4::grammar {

/// Without white space; numbers in their shortest form.
std::string canonical_json(const boost::json::value& value);
/// A number without an exponent; nothing if it is not finite.
std::optional<std::string> decimal_text(const boost::json::value& number);
/// One TypeBit.
unsigned type_of(const boost::json::value& value);
size_t character_count(std::string_view utf8);

/// The strings that a branch allows, if a Dfa can say it; nothing if it would be too large.
std::optional<Dfa> strings_of(const Branch& branch);

}  // namespace ds4::grammar
