#include "score_items.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include <boost/json.hpp>

#include "base/error.hpp"
#include "base/quote.hpp"
#include "common/calibration_set.hpp"
#include "common/console.hpp"
#include "ds4/chat.hpp"
#include "fingerprint.hpp"
#include "text_lines.hpp"

namespace ds4::quantize {
namespace fs = std::filesystem;

namespace {

/// Lists of scores (score_lists.hpp) name items by their ids, one in each line.
Result<void> check_id(const std::string& id, std::set<std::string>& known, const std::string& path,
                      size_t line) {
  if (id.empty() || id.find_first_of("\t\r\n") != std::string::npos)
    return fail(ErrorCode::format, "{}:{}: {} is no id: some characters, without tabs and ends of lines",
                path, line, quote(id));
  if (!known.insert(id).second)
    return fail(ErrorCode::format, "{}:{}: there is another line of {}", path, line, quote(id));
  return {};
}

}  // namespace

Result<ScoreItem> read_text_item(const std::string& path, const Tokenizer& tokenizer) {
  DS4_ASSIGN(const std::string text, cli::read_file(path));
  ScoreItem item{fs::path(path).filename().string(), ItemKind::text, tokenizer.encode_plain(text),
                 given_text_tokens};
  if (item.tokens.size() <= item.begin)
    return fail(ErrorCode::invalid_argument,
                "{}: a text of {} tokens is too short to score; it takes more than {}", path,
                item.tokens.size(), item.begin);
  return item;
}

Result<std::vector<ScoreItem>> read_dataset_items(const std::string& path, const Tokenizer& tokenizer,
                                                  bool are_rendered, bool& spells_special) {
  DS4_ASSIGN(const std::string text, cli::read_file(path));
  std::vector<ScoreItem> items;
  const std::string name = fs::path(path).filename().string();
  for (const std::string_view prompt : cli::calibration_prompts(text)) {
    std::vector<Token> tokens = tokenizer.encode_rendered(prompt);
    if (!are_rendered) {
      std::vector<Token> plain = tokenizer.encode_plain(prompt);
      spells_special = spells_special || plain != tokens;
      tokens = std::move(plain);
    }
    ScoreItem item{fmt::format("{}:{}", name, items.size() + 1), ItemKind::text, std::move(tokens), 1};
    if (item.tokens.size() > item.begin) items.push_back(std::move(item));
  }
  if (items.empty()) return fail(ErrorCode::invalid_argument, "{}: there is nothing to score", path);
  return items;
}

std::vector<Token> question_tokens(const std::string& text, const Tokenizer& tokenizer) {
  ChatOptions options;
  options.think = ThinkMode::none;
  return render_chat({ChatMessage{.role = Role::user, .content = text}}, options).encode(tokenizer);
}

Result<std::vector<ScoreItem>> read_continuations(const std::string& path, const Tokenizer& tokenizer) {
  DS4_ASSIGN(const std::string manifest, cli::read_file(path));
  const fs::path folder = fs::path(path).parent_path();
  std::vector<ScoreItem> items;
  std::set<std::string> ids;
  for (const auto& [number, line] : content_lines(manifest)) {
    const auto fields = split(line, '\t');
    if (fields.size() < 3 || fields[0].empty())
      return fail(ErrorCode::format, "{}:{}: an id and two files are expected, divided by tabs", path,
                  number);
    DS4_TRY(check_id(std::string(fields[0]), ids, path, number));
    DS4_ASSIGN(const std::string question, cli::read_file((folder / fields[1]).string()));
    DS4_ASSIGN(const std::string answer, cli::read_file((folder / fields[2]).string()));
    ScoreItem item{std::string(fields[0]), ItemKind::continuation, question_tokens(question, tokenizer), 0};
    item.begin = item.tokens.size();
    const auto target = tokenizer.encode_plain(answer);
    item.tokens.insert(item.tokens.end(), target.begin(), target.end());
    if (target.empty())
      return fail(ErrorCode::format, "{}:{}: the continuation of {} is empty", path, number,
                  quote(fields[0]));
    items.push_back(std::move(item));
  }
  if (items.empty()) return fail(ErrorCode::invalid_argument, "{}: there is nothing to score", path);
  return items;
}

Result<std::vector<Question>> read_questions(const std::string& path) {
  DS4_ASSIGN(const std::string text, cli::read_file(path));
  std::vector<Question> questions;
  std::set<std::string> ids;
  for (const auto& [number, line] : content_lines(text)) {
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(line, error);
    const auto* object = error ? nullptr : value.if_object();
    const auto* id = object ? object->if_contains("id") : nullptr;
    const auto* prompt = object ? object->if_contains("prompt") : nullptr;
    if (!id || !id->is_string() || !prompt || !prompt->is_string())
      return fail(ErrorCode::format, "{}:{}: an object with \"id\" and \"prompt\" is expected", path, number);
    DS4_TRY(check_id(std::string(id->get_string()), ids, path, number));
    questions.push_back({std::string(id->get_string()), std::string(prompt->get_string())});
  }
  if (questions.empty()) return fail(ErrorCode::invalid_argument, "{}: there are no questions", path);
  return questions;
}

void cut_items(std::vector<ScoreItem>& items, size_t scored) {
  for (ScoreItem& item : items) {
    if (item.scored() > scored) item.tokens.resize(item.begin + scored);
  }
}

std::string vocabulary_fingerprint(const Tokenizer& tokenizer) {
  ContentHash hash;
  for (size_t id = 0; id < tokenizer.vocabulary_size(); ++id)
    hash.add(tokenizer.vocabulary_string(static_cast<Token>(id)));
  return hash.hexadecimal();
}

}  // namespace ds4::quantize
