// The named formats of JSON Schema, as patterns. Each describes a subset of what its standard allows: texts
// that every reader of the format takes.
#include <array>

#include "grammar/regex.hpp"

namespace ds4::grammar {
namespace {

struct Format {
  std::string_view name;
  std::string_view pattern;
};

// RFC 3339, with the lengths of months and leap years (Gregorian); no leap seconds.
#define DS4_LEAP_YEAR R"((?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00))"
#define DS4_DATE                                                                                  \
  R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|)" \
  R"(02-(?:0[1-9]|1\d|2[0-8]))|)" DS4_LEAP_YEAR "-02-29)"
#define DS4_TIME R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
#define DS4_DAYS R"((?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D))"
#define DS4_HOURS R"((?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))"
#define DS4_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define DS4_HOST DS4_LABEL "(?:\\." DS4_LABEL "){0,3}"
#define DS4_BYTE R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"
#define DS4_PATH_CHARACTER R"((?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))"
#define DS4_TAIL                                                                                    \
  "(?:/" DS4_PATH_CHARACTER "*)*(?:\\?(?:" DS4_PATH_CHARACTER "|[/?])*)?(?:#(?:" DS4_PATH_CHARACTER \
  "|[/?])*)?"

constexpr std::array<Format, 10> kFormats{{
    {"date", "^" DS4_DATE "$"},
    {"time", "^" DS4_TIME "$"},
    {"date-time", "^" DS4_DATE "T" DS4_TIME "$"},
    {"duration", "^P(?:\\d{1,9}W|" DS4_DAYS "(?:T" DS4_HOURS ")?|T" DS4_HOURS ")$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^(?:" DS4_BYTE "\\.){3}" DS4_BYTE "$"},
    {"ipv6", "^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"},
    {"hostname", "^" DS4_HOST "$"},
    {"email",
     "^[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" DS4_LABEL "(?:\\." DS4_LABEL "){1,3}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*://" DS4_HOST "(?::\\d{1,4})?" DS4_TAIL "$"},
}};

#undef DS4_LEAP_YEAR
#undef DS4_DATE
#undef DS4_TIME
#undef DS4_DAYS
#undef DS4_HOURS
#undef DS4_LABEL
#undef DS4_HOST
#undef DS4_BYTE
#undef DS4_PATH_CHARACTER
#undef DS4_TAIL

}  // namespace

std::optional<Dfa> dfa_of_format(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name != name) continue;
    auto dfa = dfa_of_pattern(format.pattern);
    if (dfa) return std::move(dfa).value();
  }
  return std::nullopt;
}

}  // namespace ds4::grammar
