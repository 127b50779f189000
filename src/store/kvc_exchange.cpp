#include "store/kvc_exchange.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/out_of_memory.hpp"
#include "store/kvc_file.hpp"
#include "store/kvc_replies.hpp"
#include "store/reply_codec.hpp"

namespace ds4::store {
namespace {

class KvcSource final : public StateSource {
 public:
  explicit KvcSource(const PayloadReader& reader) : reader_(reader) {}

  std::span<const Token> tokens() const override { return reader_.tokens(); }
  Result<void> export_block(size_t block, std::span<std::byte> out) const override {
    return reader_.export_block(block, out);
  }
  Result<void> export_frontier(std::span<std::byte> out) const override {
    return reader_.export_frontier(out);
  }

 private:
  const PayloadReader& reader_;
};

class KvcSink final : public StateSink {
 public:
  explicit KvcSink(KvcWriter writer) : writer_(std::move(writer)) {}

  Result<void> add_block(std::span<const std::byte> bytes) override { return writer_.add_block(bytes); }
  Result<void> add_frontier(std::span<const std::byte> bytes) override { return writer_.finish(bytes); }

 private:
  KvcWriter writer_;
};

SaveReason save_reason(KvcReason reason) {
  return static_cast<SaveReason>(reason);
}

/// The original knows no states that were saved for the end of a turn.
KvcReason kvc_reason(SaveReason reason) {
  return reason > SaveReason::agent_session ? KvcReason::continued : static_cast<KvcReason>(reason);
}

bool is_text_of(std::string_view text, std::span<const Token> tokens, const Tokenizer& tokenizer) {
  for (const Token token : tokens) {
    const std::string bytes = tokenizer.decode(token);
    if (!text.starts_with(bytes)) return false;
    text.remove_prefix(bytes.size());
  }
  return text.empty();
}

Result<void> check_text(const KvcFile& file, const std::string& path, std::span<const Token> tokens,
                        const Tokenizer& tokenizer) {
  DS4_ASSIGN(const std::string text, file.text());
  std::string name = std::filesystem::path(path).filename();
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  if (is_kvc_file_name(name) && name != kvc_file_name(text))
    return fail(ErrorCode::format, "{}: the name is not the hash of the text", path);
  if (file.header().text_is_tokens() && !is_text_of(text, tokens, tokenizer))
    return fail(ErrorCode::format, "{}: the text is not that of the tokens with this model's vocabulary",
                path);
  return {};
}

/// Ids of calls lead to replies only where all calls of a reply lead to the same one.
Result<void> import_replies(StateStore& store, const KvcFile& file, const PayloadReader& reader,
                            const Tokenizer& tokenizer, KvcImport& import) {
  DS4_ASSIGN(const KvcTools tools, file.tools());
  if (!tools.damage.empty()) import.notices.push_back(tools.damage);
  for (const KvcReply& known : replies_of_tools(reader.tokens(), tokenizer, tools.entries)) {
    const std::vector<std::string_view> keys(known.ids.begin(), known.ids.end());
    DS4_TRY(store.put_reply(keys, serialize_sampled_reply(*known.reply)));
    ++import.replies;
  }
  return {};
}

}  // namespace

Result<KvcImport> import_kvc(StateStore& store, const std::string& path, const KvcModel& model) {
  return catch_bad_alloc(path.c_str(), [&]() -> Result<KvcImport> {
    DS4_ASSIGN(const KvcFile file, KvcFile::open(path));
    DS4_ASSIGN(const PayloadReader reader, file.payload(model.layout, {}));
    DS4_TRY(check_text(file, path, reader.tokens(), model.tokenizer));
    KvcImport import;
    import.tokens = reader.tokens().size();
    WriteInfo info;
    info.reason = save_reason(file.header().reason);
    info.anchor = info.reason == SaveReason::cold || info.reason == SaveReason::agent_system;
    info.forced = true;
    info.borders = token_borders(reader.tokens(), model.tokenizer);
    DS4_ASSIGN(import.written, store.write(KvcSource(reader), info));
    DS4_TRY(import_replies(store, file, reader, model.tokenizer, import));
    return import;
  });
}

Result<KvcExport> export_kvc(StateStore& store, const StoreEntry& entry, const std::string& path,
                             const KvcModel& model, uint8_t expert_bits) {
  return catch_bad_alloc(path.c_str(), [&]() -> Result<KvcExport> {
    DS4_TRY(require_flash(model.layout));
    DS4_ASSIGN(const StoreMatch match, store.match(entry.key));
    const std::string text = model.tokenizer.decode(match.tokens);
    KvcHeader header;
    header.expert_bits = expert_bits;
    header.reason = kvc_reason(entry.reason);
    header.hits = static_cast<uint32_t>(std::clamp(std::round(entry.hits), 0.0, 4e9));
    header.created_at = static_cast<uint64_t>(std::max<int64_t>(entry.created, 0));
    header.last_used = static_cast<uint64_t>(std::max<int64_t>(entry.used, 0));
    KvcExport result{path, match.position, 0};
    std::error_code error;
    if (std::filesystem::is_directory(path, error))
      result.path = std::filesystem::path(path) / kvc_file_name(text);
    DS4_ASSIGN(auto writer, KvcWriter::create(result.path, header, text, match.tokens, model.layout, {}));
    KvcSink sink(std::move(writer));
    DS4_TRY(store.read(match, sink));
    result.file_bytes = kvc_header_bytes + text.size() +
                        payload_bytes(model.layout, static_cast<uint32_t>(match.tokens.size()));
    return result;
  });
}

}  // namespace ds4::store
