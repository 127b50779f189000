#include "server/promised_action.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace ds4::server {
namespace {

// Only the end of the text matters.
constexpr size_t looked_at_bytes = 400;

constexpr auto openers = std::to_array<std::string_view>(
    {"now", "next", "first", "then", "okay", "ok", "so", "alright", "great", "perfect", "good", "sure", "and",
     "but", "also", "finally", "right", "well", "yes"});
constexpr auto requests = std::to_array<std::string_view>({"let me", "let us", "let's"});
constexpr auto promises = std::to_array<std::string_view>(
    {"i'll", "i will", "i'm going to", "i am going to", "i need to", "i'm now going to"});
constexpr auto adverbs = std::to_array<std::string_view>(
    {"now", "first", "also", "just", "quickly", "then", "next", "go ahead and", "take a", "start by",
     "continue by", "begin by", "try to", "carefully", "briefly", "immediately"});
constexpr auto actions = std::to_array<std::string_view>(
    {"add",       "adjust",  "analyse",     "analyze", "apply",    "begin",   "build",    "call",
     "change",    "check",   "checking",    "clean",   "clone",    "compile", "continue", "create",
     "creating",  "debug",   "delete",      "dig",     "download", "edit",    "examine",  "examining",
     "execute",   "explore", "exploring",   "fetch",   "find",     "fix",     "grep",     "implement",
     "inspect",   "install", "investigate", "list",    "locate",   "look",    "looking",  "modify",
     "open",      "patch",   "proceed",     "query",   "read",     "reading", "refactor", "remove",
     "rename",    "replace", "review",      "rewrite", "run",      "running", "scan",     "search",
     "searching", "start",   "test",        "testing", "trace",    "update",  "verify",   "view",
     "write"});
// With "let me" only: "I'll get back to you", "I will use your name" are no actions.
constexpr auto small_actions =
    std::to_array<std::string_view>({"get", "make", "move", "see", "set", "try", "use"});
// Of what depends on somebody else.
constexpr auto conditions =
    std::to_array<std::string_view>({" if ", " once you", " when you", " after you", " unless ",
                                     " as soon as", " whenever", " you want", " you'd like"});

constexpr auto chinese_openers = std::to_array<std::string_view>(
    {"好的", "好", "现在", "接下来", "首先", "下面", "那么", "然后", "那", "，", ",", " ", "、", "：", ":"});
constexpr auto chinese_promises = std::to_array<std::string_view>(
    {"让我", "我来", "我先", "我将", "我会", "我现在", "我这就", "我再", "我需要先"});
constexpr auto chinese_actions = std::to_array<std::string_view>(
    {"查看", "看看", "看一下", "检查", "读取", "阅读", "运行", "执行", "搜索", "打开", "修改", "编辑",
     "创建", "写入", "编写",   "更新", "修复", "测试", "分析", "查找", "查询", "列出", "确认", "了解",
     "尝试", "实现", "添加",   "开始", "继续", "调用", "安装", "验证", "调查", "定位", "删除", "替换"});
constexpr auto chinese_conditions =
    std::to_array<std::string_view>({"如果", "等你", "等您", "一旦", "需要你", "需要您"});

/// Takes one of the words off the front; false if none is there.
template <size_t N>
bool take_word(std::string_view& text, const std::array<std::string_view, N>& words) {
  for (const std::string_view word : words) {
    if (!text.starts_with(word)) continue;
    std::string_view rest = text.substr(word.size());
    if (!rest.empty() && rest.front() >= 'a' && rest.front() <= 'z') continue;
    const size_t next = rest.find_first_not_of(" ,;");
    text = next == std::string_view::npos ? std::string_view() : rest.substr(next);
    return true;
  }
  return false;
}

template <size_t N>
bool take_prefix(std::string_view& text, const std::array<std::string_view, N>& words) {
  for (const std::string_view word : words) {
    if (!text.starts_with(word)) continue;
    text.remove_prefix(word.size());
    return true;
  }
  return false;
}

template <size_t N>
bool contains_any(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

bool promises_in_english(std::string_view sentence) {
  const std::string_view all = sentence;
  while (take_word(sentence, openers)) {
  }
  const bool requested = take_word(sentence, requests);
  if (!requested && !take_word(sentence, promises)) return false;
  while (take_word(sentence, adverbs)) {
  }
  const bool acts = take_word(sentence, actions) || (requested && take_word(sentence, small_actions));
  return acts && !contains_any(all, conditions);
}

bool promises_in_chinese(std::string_view sentence) {
  const std::string_view all = sentence;
  while (take_prefix(sentence, chinese_openers)) {
  }
  if (!take_prefix(sentence, chinese_promises)) return false;
  return contains_any(sentence, chinese_actions) && !contains_any(all, chinese_conditions);
}

/// Lower case, and one kind of apostrophe.
std::string simplified(std::string_view text) {
  constexpr std::string_view kCurly = "\u2019";
  std::string result;
  for (size_t i = 0; i < text.size();) {
    if (text.substr(i).starts_with(kCurly)) {
      result += '\'';
      i += kCurly.size();
      continue;
    }
    const char c = text[i++];
    result += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return result;
}

/// Takes white space and marks of emphasis off the end.
void trim_end(std::string_view& text) {
  const size_t last = text.find_last_not_of(" \t\r\n*_");
  text = text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

/// Where the last sentence begins; a dot inside a word ("main.cpp") ends none.
size_t last_sentence(std::string_view text) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (text[i] == '\n') begin = i + 1;
    for (const std::string_view mark : {". ", "! ", "? ", ": "}) {
      if (rest.starts_with(mark)) begin = i + mark.size();
    }
    for (const std::string_view mark : {"。", "！", "？"}) {
      if (rest.starts_with(mark)) begin = i + mark.size();
    }
  }
  return begin;
}

}  // namespace

bool promises_action(std::string_view content) {
  // A character cut in two at the front does no harm: it is part of no word that is looked for.
  const std::string end =
      simplified(content.substr(content.size() - std::min(content.size(), looked_at_bytes)));
  std::string_view text = end;
  trim_end(text);
  if (text.empty() || text.ends_with('?') || text.ends_with("？")) return false;
  if (text.ends_with(':') || text.ends_with("：")) return true;
  while (take_suffix(text, ".") || take_suffix(text, "!") || take_suffix(text, "…") ||
         take_suffix(text, "。") || take_suffix(text, "！")) {
    trim_end(text);
  }
  text.remove_prefix(last_sentence(text));
  const size_t first = text.find_first_not_of(" \t*_-");
  if (first == std::string_view::npos) return false;
  text.remove_prefix(first);
  return promises_in_english(text) || promises_in_chinese(text);
}

}  // namespace ds4::server
