// Reading suites: JSON lines of ours, and the published files of GPQA, SuperGPQA and AIME.
#include <algorithm>
#include <initializer_list>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "extract.hpp"
#include "suite.hpp"
#include "text_tools.hpp"

namespace ds4::eval {
namespace {

namespace json = boost::json;

/// FNV-1a: the place of GPQA's right choice must not change between runs or machines.
uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string without_spaces(std::string_view text) {
  return replace_all(collapse(text), " ", "-");
}

std::string short_title(std::string_view question) {
  constexpr size_t longest = 40;
  return std::string(clip_bytes(collapse(question), longest));
}

/// One object of a file of JSON lines, with messages that say where.
class Row {
 public:
  Row(const json::object& object, std::string place) : object_(object), place_(std::move(place)) {}

  bool has(std::string_view name) const { return object_.contains(name); }
  /// A text, or a number as text; empty if it is not there.
  Result<std::string> text(std::string_view name) const {
    const json::value* value = object_.if_contains(name);
    if (value == nullptr || value->is_null()) return std::string();
    if (value->is_string()) return std::string(value->get_string());
    if (value->is_int64() || value->is_uint64()) return std::string(json::serialize(*value));
    return fail(ErrorCode::format, "{}: \"{}\" is not a text", place_, name);
  }
  Result<std::vector<std::string>> texts(std::string_view name) const {
    std::vector<std::string> result;
    const json::value* value = object_.if_contains(name);
    if (value == nullptr) return result;
    const json::array* array = value->if_array();
    if (array == nullptr) return fail(ErrorCode::format, "{}: \"{}\" is not an array", place_, name);
    for (const json::value& element : *array) {
      result.emplace_back(element.is_string() ? std::string(element.get_string()) : json::serialize(element));
    }
    return result;
  }
  /// The first of these names that is there.
  Result<std::string> first_text(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (has(name)) return text(name);
    }
    return std::string();
  }
  const json::value* find(std::string_view name) const { return object_.if_contains(name); }
  /// Names that are none of `known` are spelling mistakes.
  Result<void> only(std::initializer_list<std::string_view> known) const {
    for (const auto& member : object_) {
      const std::string_view name(member.key().data(), member.key().size());
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        return fail(ErrorCode::format, "{}: there is no field \"{}\"", place_, name);
      }
    }
    return {};
  }
  const std::string& place() const { return place_; }

 private:
  const json::object& object_;
  std::string place_;
};

/// A line of our own format.
Result<Item> own_item(const Row& row) {
  DS4_TRY(row.only({"source", "id", "domain", "title", "question", "choices", "answer", "answer_kind",
                    "aliases", "solution", "check", "prompt", "system", "tools", "think", "max_tokens"}));
  Item item;
  DS4_ASSIGN(item.source, row.text("source"));
  DS4_ASSIGN(item.id, row.text("id"));
  DS4_ASSIGN(item.domain, row.text("domain"));
  DS4_ASSIGN(item.title, row.text("title"));
  DS4_ASSIGN(item.question, row.text("question"));
  DS4_ASSIGN(item.choices, row.texts("choices"));
  DS4_ASSIGN(item.answer, row.text("answer"));
  DS4_ASSIGN(item.aliases, row.texts("aliases"));
  DS4_ASSIGN(item.solution, row.text("solution"));
  DS4_ASSIGN(item.check, row.text("check"));
  DS4_ASSIGN(item.tools, row.texts("tools"));
  DS4_ASSIGN(const std::string kind, row.text("answer_kind"));
  const auto parsed = parse_kind(kind, item);
  if (!parsed) return fail(ErrorCode::format, "{}: {}", row.place(), parsed.error().message);
  item.kind = *parsed;
  if (item.kind == AnswerKind::tool_calls) {
    const auto calls = canonical_tool_calls(item.answer);
    if (!calls) return fail(ErrorCode::format, "{}: {}", row.place(), calls.error().message);
    item.answer = *calls;
  }
  DS4_ASSIGN(const std::string prompt, row.text("prompt"));
  if (prompt == "bare") item.style = PromptStyle::bare;
  if (!prompt.empty() && prompt != "bare" && prompt != "benchmark") {
    return fail(ErrorCode::format, "{}: \"prompt\" is bare or benchmark, not '{}'", row.place(), prompt);
  }
  if (row.has("system")) {
    DS4_ASSIGN(std::string system, row.text("system"));
    item.system = std::move(system);
  }
  if (const json::value* think = row.find("think")) {
    if (!think->is_bool()) return fail(ErrorCode::format, "{}: \"think\" is true or false", row.place());
    item.think = think->get_bool();
  }
  if (const json::value* tokens = row.find("max_tokens")) {
    json::error_code error;
    item.max_tokens = tokens->to_number<uint64_t>(error);
    if (error || item.max_tokens == 0 || item.max_tokens > 1000000) {
      return fail(ErrorCode::format, "{}: \"max_tokens\" is from 1 to 1000000", row.place());
    }
  }
  return item;
}

/// {"uuid", "question", "options", "answer", "answer_letter", "field", ...}
Result<Item> super_gpqa_item(const Row& row) {
  Item item{.source = "SuperGPQA", .kind = AnswerKind::choice};
  DS4_ASSIGN(const std::string id, row.text("uuid"));
  item.id = without_spaces(id);
  DS4_ASSIGN(item.domain, row.first_text({"field", "discipline"}));
  DS4_ASSIGN(item.question, row.text("question"));
  DS4_ASSIGN(item.choices, row.texts("options"));
  DS4_ASSIGN(const std::string letter, row.text("answer_letter"));
  item.answer = collapse(letter);
  item.title = short_title(item.question);
  return item;
}

/// {"problem" or "question", "answer", "id"}
Result<Item> aime_item(const Row& row, size_t number, const std::string& source) {
  Item item{.source = source, .domain = "mathematics"};
  DS4_ASSIGN(const std::string id, row.first_text({"id", "ID"}));
  item.id = id.empty() ? fmt::format("{:02}", number) : without_spaces(id);
  DS4_ASSIGN(item.question, row.first_text({"problem", "Problem", "question", "Question"}));
  DS4_ASSIGN(const std::string answer, row.first_text({"answer", "Answer"}));
  item.answer = collapse(answer);
  item.title = short_title(item.question);
  return item;
}

/// "aime2025" of "data/aime2025.csv"
std::string stem(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return without_spaces(name.substr(0, name.find('.')));
}

Result<std::vector<Item>> parse_json_lines(std::string_view text, const std::string& path) {
  std::vector<Item> items;
  size_t number = 0;
  while (!text.empty()) {
    const size_t newline = std::min(text.size(), text.find('\n'));
    const std::string_view line = trim(text.substr(0, newline));
    text.remove_prefix(std::min(text.size(), newline + 1));
    ++number;
    if (line.empty()) continue;
    std::string place = fmt::format("{}, line {}", path, number);
    json::error_code error;
    const json::value value = json::parse({line.data(), line.size()}, error);
    const json::object* object = error ? nullptr : value.if_object();
    if (object == nullptr) return fail(ErrorCode::format, "{}: not a JSON object", place);
    const Row row(*object, std::move(place));
    Result<Item> item = row.has("answer_letter") ? super_gpqa_item(row)
                        : row.has("source")      ? own_item(row)
                                                 : aime_item(row, items.size() + 1, stem(path));
    if (!item) return std::move(item).error();
    items.push_back(*std::move(item));
  }
  return items;
}

/// The rows of a CSV by the names of its columns.
class Table {
 public:
  explicit Table(std::vector<std::vector<std::string>> rows) : rows_(std::move(rows)) {}
  size_t size() const { return rows_.empty() ? 0 : rows_.size() - 1; }
  bool has(std::string_view column) const { return !rows_.empty() && find(column) < rows_[0].size(); }
  /// Precondition: row < size(). Empty if there is no such column.
  std::string at(size_t row, std::string_view column) const {
    const size_t index = find(column);
    return index < rows_[row + 1].size() ? rows_[row + 1][index] : std::string();
  }

 private:
  size_t find(std::string_view column) const {
    const auto same = [&](const std::string& name) { return lower(collapse(name)) == lower(column); };
    return static_cast<size_t>(std::find_if(rows_[0].begin(), rows_[0].end(), same) - rows_[0].begin());
  }
  std::vector<std::vector<std::string>> rows_;
};

Item gpqa_item(const Table& table, size_t row) {
  Item item{.source = "GPQA", .kind = AnswerKind::choice};
  item.question = std::string(trim(table.at(row, "Question")));
  item.id = without_spaces(table.at(row, "Record ID"));
  if (item.id.empty()) item.id = fmt::format("{:03}", row + 1);
  item.domain = collapse(table.at(row, "Subdomain"));
  if (item.domain.empty()) item.domain = collapse(table.at(row, "High-level domain"));
  item.title = short_title(item.question);
  for (const int i : {1, 2, 3}) {
    item.choices.emplace_back(trim(table.at(row, fmt::format("Incorrect Answer {}", i))));
  }
  const size_t place = stable_hash(item.question) % 4;
  item.choices.insert(item.choices.begin() + static_cast<ptrdiff_t>(place),
                      std::string(trim(table.at(row, "Correct Answer"))));
  item.answer = std::string(1, static_cast<char>('A' + place));
  return item;
}

Result<std::vector<Item>> parse_table(std::string_view text, const std::string& path) {
  auto rows = parse_csv(text);
  if (!rows) return fail(ErrorCode::format, "{}: {}", path, rows.error().message);
  const Table table(*std::move(rows));
  const bool gpqa = table.has("Correct Answer") && table.has("Incorrect Answer 3") && table.has("Question");
  const char* problem = table.has("Problem") ? "Problem" : "Question";
  if (!gpqa && !(table.has(problem) && table.has("Answer"))) {
    return fail(ErrorCode::format,
                "{}: needs the columns of GPQA (Question, Correct Answer, Incorrect Answer 1 to 3) or AIME "
                "(Problem, Answer)",
                path);
  }
  std::vector<Item> items;
  for (size_t i = 0; i < table.size(); ++i) {
    if (gpqa) {
      items.push_back(gpqa_item(table, i));
      continue;
    }
    Item item{.source = stem(path), .domain = "mathematics"};
    item.id = without_spaces(table.at(i, "ID"));
    if (item.id.empty()) item.id = fmt::format("{:02}", i + 1);
    item.question = std::string(trim(table.at(i, problem)));
    item.answer = collapse(table.at(i, "Answer"));
    item.title = short_title(item.question);
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

Result<std::vector<std::vector<std::string>>> parse_csv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  size_t i = 0;
  const auto end_field = [&] {
    row.push_back(std::move(field));
    field.clear();
  };
  const auto end_row = [&] {
    end_field();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  while (i < text.size()) {
    const char c = text[i++];
    if (c == '"' && field.empty()) {
      for (;; ++i) {
        if (i >= text.size()) {
          return fail(ErrorCode::format, "the quotes in row {} are not closed", rows.size() + 1);
        }
        if (text[i] != '"') {
          field += text[i];
        } else if (i + 1 < text.size() && text[i + 1] == '"') {
          field += text[i++];
        } else {
          break;
        }
      }
      ++i;
    } else if (c == ',') {
      end_field();
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      field += c;
    }
  }
  if (!field.empty() || !row.empty()) end_row();
  return rows;
}

Result<std::vector<Item>> parse_suite(std::string_view text, const std::string& path) {
  static constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  const std::string_view begin = trim(text);
  if (begin.empty()) return fail(ErrorCode::format, "{} is empty", path);
  DS4_ASSIGN(auto items, begin.front() == '{' ? parse_json_lines(text, path) : parse_table(text, path));
  if (items.empty()) return fail(ErrorCode::format, "{} has no questions", path);
  return items;
}

}  // namespace ds4::eval
