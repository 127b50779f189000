// Reading a request body: JSON values as they stand in its text, and typed fields that name themselves in
// errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.hpp"
#include "text/json_text.hpp"

namespace ds4::server::api {

/// One well-formed JSON value, a view into the body. Nothing is converted before it is asked for, so that the
/// text of a tool's schema stays byte for byte what the client sent.
class JsonValue {
 public:
  enum class Kind { null, boolean, number, string, array, object };

  JsonValue() = default;  // null
  /// Precondition: `text` is one well-formed value without white space around it.
  explicit JsonValue(std::string_view text) : text_(text) {}

  Kind kind() const;
  bool is(Kind kind) const { return this->kind() == kind; }
  std::string_view text() const { return text_; }

  /// Preconditions: the kind.
  bool boolean() const { return text_ == "true"; }
  std::string string() const { return text::json_unquote(text_); }
  std::vector<JsonValue> elements() const;
  std::vector<text::JsonMember> members() const;

 private:
  std::string_view text_ = "null";
};

/// What is wrong with a request; the first complaint counts.
class FieldErrors {
 public:
  void add(std::string param, std::string message, std::string code);
  explicit operator bool() const { return first_.has_value(); }
  /// Precondition: there is one.
  const RequestError& first() const { return *first_; }

 private:
  std::optional<RequestError> first_;
};

/// The object that a body consists of. What follows its closing brace is ignored. Refused: anything that is
/// not strict JSON in UTF-8, more than 256 levels, more values than a request can need.
std::optional<JsonValue> parse_body(std::string_view body, FieldErrors& errors);

/// The members of one object; the last of repeated names counts, null counts as absent. Readers give nothing
/// for an absent field, and for one of a wrong type or range after noting the error.
class Fields {
 public:
  /// Precondition: `object` is one. `path` stands before the names in errors: "", "messages[2]".
  Fields(const JsonValue& object, std::string path, FieldErrors& errors);

  std::optional<JsonValue> find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name).has_value(); }
  /// The position among the members, or nothing: which of two fields was given last.
  std::optional<size_t> position(std::string_view name) const;
  /// "messages[2].role"
  std::string path_of(std::string_view name) const;

  std::optional<bool> boolean(std::string_view name) const;
  std::optional<std::string> string(std::string_view name) const;
  std::optional<double> number(std::string_view name, double least, double most) const;
  /// Numbers without a fraction, 4096.0 too.
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most) const;
  /// `integer` for sizes.
  std::optional<size_t> count(std::string_view name, size_t least, size_t most) const;
  std::optional<Fields> object(std::string_view name) const;
  std::optional<std::vector<JsonValue>> array(std::string_view name) const;

  /// Notes that the field has a wrong type; `expected` as in "a string".
  void wrong_type(std::string_view name, std::string_view expected) const;
  /// Notes that the field has a value that makes no sense; `why` continues "temperature ".
  void wrong_value(std::string_view name, std::string_view why) const;
  /// Notes that this server cannot do what the field asks for; `why` continues the sentence.
  void refuse(std::string_view name, std::string_view why = "is not supported") const;

  FieldErrors& errors() const { return *errors_; }

 private:
  std::optional<JsonValue> find_kind(std::string_view name, JsonValue::Kind kind,
                                     std::string_view expected) const;

  std::vector<text::JsonMember> members_;
  std::string path_;
  FieldErrors* errors_;
};

/// The object of element `index` of the array `name`: path "name[index]". Nothing, and an error, for others.
std::optional<Fields> element_fields(const JsonValue& element, const std::string& path, FieldErrors& errors);
/// "name[index]"
std::string element_path(std::string_view path, size_t index);

}  // namespace ds4::server::api
