#include "store/kvc_file.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/checked.hpp"
#include "base/error.hpp"
#include "store/file_access.hpp"

namespace ds4::store {
namespace {

constexpr std::array<char, 3> magic = {'K', 'V', 'C'};
constexpr std::array<char, 4> tools_magic = {'K', 'T', 'M', 1};
constexpr uint8_t version = 1;
constexpr uint32_t most_tools = 400000;  // of more, a trailer is taken for damaged
constexpr uint32_t longest_id = 256;

template <class T>
T load(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class T>
void store(std::span<std::byte> bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::array<std::byte, kvc_header_bytes> header_bytes(const KvcHeader& header) {
  std::array<std::byte, kvc_header_bytes> bytes{};
  std::memcpy(bytes.data(), magic.data(), magic.size());
  store(bytes, 3, version);
  store(bytes, 4, header.expert_bits);
  store(bytes, 5, header.reason);
  store(bytes, 6, header.flags);
  store(bytes, 7, header.model);
  store(bytes, 8, header.tokens);
  store(bytes, 12, header.hits);
  store(bytes, 16, header.context);
  store(bytes, 20, header.payload_version);
  store(bytes, 24, header.created_at);
  store(bytes, 32, header.last_used);
  store(bytes, 40, header.payload_bytes);
  store(bytes, 48, header.text_bytes);
  return bytes;
}

}  // namespace

std::string kvc_file_name(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha1(), nullptr);
  std::string name;
  for (unsigned int i = 0; i < size; ++i) name += fmt::format("{:02x}", digest[i]);
  return name + ".kv";
}

bool is_kvc_file_name(std::string_view name) {
  constexpr size_t digits = 40;
  return name.size() == digits + 3 && name.substr(digits) == ".kv" &&
         name.find_first_not_of("0123456789abcdefABCDEF") == digits;
}

Result<KvcFile> KvcFile::open(const std::string& path) {
  DS4_ASSIGN(auto source, open_source(path));
  return open(std::move(source), path);
}

Result<KvcFile> KvcFile::open(std::unique_ptr<ByteSource> source, std::string name) {
  KvcFile file(std::move(source), std::move(name));
  DS4_TRY(file.read_header());
  return file;
}

Result<void> KvcFile::read_header() {
  std::array<std::byte, kvc_header_bytes> bytes{};
  if (source_->size() < bytes.size())
    return fail(ErrorCode::format, "{}: {} bytes are too few for a KVC file", name_, source_->size());
  DS4_TRY(source_->read(0, bytes));
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    return fail(ErrorCode::format, "{}: is not a KVC file", name_);
  if (const auto found = load<uint8_t>(bytes, 3); found != version)
    return fail(ErrorCode::unsupported, "{}: KVC version {} is not known, only {} is", name_, found, version);
  header_.expert_bits = load<uint8_t>(bytes, 4);
  const auto reason = load<uint8_t>(bytes, 5);
  header_.reason =
      reason <= static_cast<uint8_t>(KvcReason::agent_session) ? KvcReason{reason} : KvcReason::unknown;
  header_.flags = load<uint8_t>(bytes, 6);
  header_.model = load<uint8_t>(bytes, 7);
  header_.tokens = load<uint32_t>(bytes, 8);
  header_.hits = load<uint32_t>(bytes, 12);
  header_.context = load<uint32_t>(bytes, 16);
  header_.payload_version = load<uint8_t>(bytes, 20);
  header_.created_at = load<uint64_t>(bytes, 24);
  header_.last_used = load<uint64_t>(bytes, 32);
  header_.payload_bytes = load<uint64_t>(bytes, 40);
  header_.text_bytes = load<uint32_t>(bytes, 48);
  if (header_.tokens == 0) return fail(ErrorCode::format, "{}: the header tells of no tokens", name_);
  if (header_.expert_bits != 2 && header_.expert_bits != 4)
    return fail(ErrorCode::format, "{}: experts of {} bits, but only 2 and 4 are possible", name_,
                header_.expert_bits);
  const auto needed = checked_add(kvc_header_bytes + uint64_t{header_.text_bytes}, header_.payload_bytes);
  if (!needed || *needed > source_->size())
    return fail(ErrorCode::format,
                "{}: a text of {} bytes and a payload of {} are more than the file has ({})", name_,
                header_.text_bytes, header_.payload_bytes, source_->size());
  return {};
}

Result<std::string> KvcFile::text() const {
  if (header_.text_bytes > kvc_largest_text)
    return fail(ErrorCode::format, "{}: a text of {} bytes is longer than any conversation", name_,
                header_.text_bytes);
  std::string text(header_.text_bytes, '\0');
  DS4_TRY(source_->read(kvc_header_bytes, std::as_writable_bytes(std::span(text))));
  return text;
}

Result<PayloadReader> KvcFile::payload(const StateLayout& layout, const PayloadReader::Limits& limits) const {
  DS4_TRY(require_flash(layout));
  DS4_ASSIGN(auto reader, PayloadReader::open(*source_, kvc_header_bytes + header_.text_bytes,
                                              header_.payload_bytes, layout, limits, name_));
  if (reader.header().tokens == header_.tokens) return reader;
  return fail(ErrorCode::format, "{}: the header tells of {} tokens, the payload of {}", name_,
              header_.tokens, reader.header().tokens);
}

Result<KvcTools> KvcFile::tools() const {
  KvcTools tools;
  if ((header_.flags & kvc_has_tools) == 0) return tools;
  uint64_t at = kvc_header_bytes + header_.text_bytes + header_.payload_bytes;
  const auto damaged = [&](std::string_view what) {
    tools.damage = fmt::format("{}: the map of tool calls {}", name_, what);
    return std::move(tools);
  };
  std::array<std::byte, 8> start{};
  if (source_->size() - at < start.size()) return damaged("ends in its header");
  DS4_TRY(source_->read(at, start));
  at += start.size();
  if (std::memcmp(start.data(), tools_magic.data(), tools_magic.size()) != 0)
    return damaged("does not begin with KTM");
  const auto count = load<uint32_t>(start, 4);
  if (count > most_tools) return damaged("has more entries than any conversation");
  size_t total = 0;
  for (uint32_t i = 0; i < count; ++i) {
    std::array<std::byte, 8> lengths{};
    if (source_->size() - at < lengths.size()) return damaged("ends between its entries");
    DS4_TRY(source_->read(at, lengths));
    at += lengths.size();
    const auto id_bytes = load<uint32_t>(lengths, 0), block_bytes = load<uint32_t>(lengths, 4);
    if (id_bytes == 0 || id_bytes > longest_id) return damaged("has an id of an impossible length");
    if (block_bytes == 0) return damaged("has an empty block");
    if (source_->size() - at < uint64_t{id_bytes} + block_bytes) return damaged("ends in an entry");
    total += id_bytes + size_t{block_bytes};
    if (total > kvc_largest_trailer) return damaged("is longer than any conversation");
    KvcTool tool{std::string(id_bytes, '\0'), std::string(block_bytes, '\0')};
    DS4_TRY(source_->read(at, std::as_writable_bytes(std::span(tool.id))));
    DS4_TRY(source_->read(at + id_bytes, std::as_writable_bytes(std::span(tool.block))));
    at += uint64_t{id_bytes} + block_bytes;
    tools.entries.push_back(std::move(tool));
  }
  return tools;
}

std::string kvc_trailer(std::span<const KvcTool> tools) {
  if (tools.empty()) return {};
  std::string bytes(tools_magic.data(), tools_magic.size());
  const auto append = [&](size_t number) {
    const auto value = static_cast<uint32_t>(number);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  append(tools.size());
  for (const KvcTool& tool : tools) {
    append(tool.id.size());
    append(tool.block.size());
    bytes += tool.id;
    bytes += tool.block;
  }
  return bytes;
}

struct KvcWriter::Impl {
  std::unique_ptr<PendingFile> file;
  std::optional<PayloadWriter> payload;
};

KvcWriter::KvcWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvcWriter::KvcWriter(KvcWriter&&) noexcept = default;
KvcWriter& KvcWriter::operator=(KvcWriter&&) noexcept = default;
KvcWriter::~KvcWriter() = default;

Result<KvcWriter> KvcWriter::create(const std::string& path, KvcHeader header, std::string_view text,
                                    std::span<const Token> tokens, const StateLayout& layout,
                                    std::span<const KvcTool> tools) {
  DS4_TRY(require_flash(layout));
  if (tokens.empty()) return fail(ErrorCode::invalid_argument, "{}: a state without tokens", path);
  if (tokens.size() >= UINT32_MAX || text.size() > UINT32_MAX)
    return fail(ErrorCode::invalid_argument,
                "{}: {} tokens with {} bytes of text are too many for a KVC file", path, tokens.size(),
                text.size());
  const PayloadHeader payload = payload_header(static_cast<uint32_t>(tokens.size()));
  header.tokens = payload.tokens;
  header.context = payload.context;
  header.payload_bytes = payload_bytes(layout, payload.tokens);
  header.text_bytes = static_cast<uint32_t>(text.size());
  header.flags = static_cast<uint8_t>((header.flags & ~kvc_has_tools) | (tools.empty() ? 0 : kvc_has_tools));

  auto impl = std::make_unique<Impl>();
  DS4_ASSIGN(impl->file, PendingFile::create(path));
  DS4_TRY(impl->file->write(0, header_bytes(header)));
  DS4_TRY(impl->file->write(kvc_header_bytes, std::as_bytes(std::span(text))));
  const uint64_t payload_at = kvc_header_bytes + text.size();
  const std::string trailer = kvc_trailer(tools);
  DS4_TRY(impl->file->write(payload_at + header.payload_bytes, std::as_bytes(std::span(trailer))));
  DS4_ASSIGN(impl->payload, PayloadWriter::begin(*impl->file, payload_at, layout, tokens, payload));
  return KvcWriter(std::move(impl));
}

Result<void> KvcWriter::add_block(std::span<const std::byte> block) {
  return impl_->payload->add_block(block);
}

Result<void> KvcWriter::finish(std::span<const std::byte> frontier) {
  DS4_TRY(impl_->payload->finish(frontier));
  return impl_->file->commit();
}

}  // namespace ds4::store
