#include "store/session_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "base/out_of_memory.hpp"
#include "store/engine_state.hpp"

namespace ds4::store {
namespace {

constexpr char magic[] = "DS4SESSN";
constexpr uint32_t version = 1;
constexpr size_t fingerprint_size = 32;

/// XXH3-128 in its canonical form: the high half first, big-endian.
using Checksum = std::array<unsigned char, sizeof(XXH128_canonical_t)>;

/// `number` tells pieces of a file apart, so that they cannot change places.
Checksum checksum(std::span<const std::byte> bytes, uint64_t number) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(bytes.data(), bytes.size(), number));
  Checksum result;
  std::memcpy(result.data(), canonical.digest, result.size());
  return result;
}

struct Header {
  char magic[8];
  uint32_t version = 0;
  uint32_t reserved = 0;
  char fingerprint[fingerprint_size];  // Engine::fingerprint()
  Checksum vocabulary;
  uint64_t tokens = 0;
  uint64_t preamble_tokens = 0;
  uint64_t block_bytes = 0;
  uint64_t frontier_bytes = 0;
  Checksum token_ids;
  Checksum header;  // of all bytes before it
};
static_assert(sizeof(Header) == 128);
static_assert(offsetof(Header, header) == sizeof(Header) - sizeof(Checksum));

// The seeds of checksums; block b has first_block_number + b, the frontier the number after the last block.
constexpr uint64_t header_number = 0, token_number = 1, first_block_number = 2;

Checksum header_checksum(const Header& header) {
  return checksum(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header)), header_number);
}

/// Tells tokenizers apart: the bytes of all tokens, with their lengths.
Checksum vocabulary_checksum(const Engine& engine) {
  std::string all;
  for (Token token = 0; static_cast<uint32_t>(token) < engine.info().vocabulary; ++token) {
    const std::string text = engine.tokenizer().decode(token);
    all += fmt::format("{}:{}", text.size(), text);
  }
  return checksum(std::as_bytes(std::span(all)), 0);
}

bool is_saved_session(const std::string& path) {
  std::array<char, sizeof(magic) - 1> start{};
  std::ifstream file(path, std::ios::binary);
  return file.read(start.data(), start.size()) && std::memcmp(start.data(), magic, start.size()) == 0;
}

/// A file that appears under its name when it is complete.
class NewFile {
 public:
  static Result<NewFile> create(const std::string& path) {
    // Renaming replaces a symbolic link, so follow it first.
    std::string target = path;
    if (char* resolved = ::realpath(path.c_str(), nullptr)) {
      target = resolved;
      ::free(resolved);
    }
    struct stat status{};
    const bool there = ::stat(target.c_str(), &status) == 0;
    if (there && !S_ISREG(status.st_mode)) {
      return fail(ErrorCode::io, "cannot write {}: not a regular file", path);
    }
    // A name typed in haste must not cost a letter or a source file.
    if (there && status.st_size > 0 && !is_saved_session(target)) {
      return fail(ErrorCode::io, "{} is not a saved session, so it is not replaced", path);
    }
    std::string temporary = target + ".XXXXXX";
    const int descriptor = ::mkostemp(temporary.data(), O_CLOEXEC);  // 0600
    if (descriptor < 0) return fail(ErrorCode::io, "cannot write {}: {}", path, std::strerror(errno));
    return NewFile(descriptor, std::move(target), std::move(temporary));
  }

  NewFile(NewFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})) {}
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Result<void> write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return failure();
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }
  Result<void> write(const Checksum& sum) { return write(std::as_bytes(std::span(sum))); }

  Result<void> commit() {
    if (::fsync(descriptor_) != 0) return failure();
    if (::close(std::exchange(descriptor_, -1)) != 0) return failure();
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure();
    temporary_.clear();
    // The name, too, outlives a loss of power.
    const std::string folder = path_.substr(0, path_.find_last_of('/') + 1);
    const int parent = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent >= 0) {
      static_cast<void>(::fsync(parent));
      ::close(parent);
    }
    return {};
  }

 private:
  NewFile(int descriptor, std::string path, std::string temporary)
      : descriptor_(descriptor), path_(std::move(path)), temporary_(std::move(temporary)) {}
  Error failure() const { return fail(ErrorCode::io, "cannot write {}: {}", path_, std::strerror(errno)); }

  int descriptor_;
  std::string path_, temporary_;
};

Result<void> save(const std::string& path, const Engine& engine, const Session& session,
                  size_t preamble_tokens, const std::string& numerics) {
  if (session.position() == 0) return fail(ErrorCode::invalid_argument, "there is no conversation to save");
  DS4_ASSIGN(const Snapshot snapshot, session.snapshot());
  DS4_ASSIGN(const std::string fingerprint, state_fingerprint(engine, numerics));
  const std::span<const Token> tokens = snapshot.token_ids();
  const StateLayout& layout = engine.state_layout();
  Header header{};
  std::memcpy(header.magic, magic, sizeof(header.magic));
  header.version = version;
  std::memcpy(header.fingerprint, fingerprint.data(), std::min(fingerprint.size(), fingerprint_size));
  header.vocabulary = vocabulary_checksum(engine);
  header.tokens = tokens.size();
  header.preamble_tokens = std::min(preamble_tokens, tokens.size());
  header.block_bytes = layout.block_bytes();
  header.frontier_bytes = layout.frontier_bytes(tokens.size());
  header.token_ids = checksum(std::as_bytes(tokens), token_number);
  header.header = header_checksum(header);

  DS4_ASSIGN(NewFile file, NewFile::create(path));
  DS4_TRY(file.write(std::as_bytes(std::span(&header, 1))));
  DS4_TRY(file.write(std::as_bytes(tokens)));
  const size_t blocks = tokens.size() / state_block_tokens;
  std::vector<std::byte> piece(header.block_bytes);
  for (size_t block = 0; block < blocks; ++block) {
    DS4_TRY(snapshot.export_block(block, piece));
    DS4_TRY(file.write(piece));
    DS4_TRY(file.write(checksum(piece, first_block_number + block)));
  }
  piece.resize(header.frontier_bytes);
  DS4_TRY(snapshot.export_frontier(piece));
  DS4_TRY(file.write(piece));
  DS4_TRY(file.write(checksum(piece, first_block_number + blocks)));
  return file.commit();
}

/// Takes a file apart, piece after piece.
class Pieces {
 public:
  explicit Pieces(std::span<const std::byte> bytes) : left_(bytes) {}

  std::span<const std::byte> take(size_t size) {
    const auto piece = left_.first(size);
    left_ = left_.subspan(size);
    return piece;
  }
  /// None if its checksum differs.
  std::optional<std::span<const std::byte>> take_checked(size_t size, uint64_t number) {
    const auto piece = take(size);
    const Checksum sum = checksum(piece, number);
    const auto stored = take(sum.size());
    if (std::memcmp(stored.data(), sum.data(), sum.size()) != 0) return std::nullopt;
    return piece;
  }

 private:
  std::span<const std::byte> left_;
};

struct Opened {
  MappedFile file;
  Header header;
  std::vector<Token> tokens;
};

Result<Opened> open_tokens(const std::string& path) {
  DS4_ASSIGN(MappedFile file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file.bytes();
  Header header{};
  if (bytes.size() < sizeof(header) || std::memcmp(bytes.data(), magic, sizeof(header.magic)) != 0) {
    return fail(ErrorCode::format, "{} is not a saved session", path);
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.version != version) {
    return fail(ErrorCode::format, "{}: version {} of saved sessions is not known", path, header.version);
  }
  const size_t most = (bytes.size() - sizeof(header)) / sizeof(Token);
  if (header.header != header_checksum(header) || header.tokens == 0 || header.tokens > most ||
      header.preamble_tokens > header.tokens) {
    return fail(ErrorCode::format, "{}: the file is damaged: its header", path);
  }
  std::vector<Token> tokens(header.tokens);
  const auto stored = bytes.subspan(sizeof(header), tokens.size() * sizeof(Token));
  std::memcpy(tokens.data(), stored.data(), stored.size());
  if (checksum(stored, token_number) != header.token_ids) {
    return fail(ErrorCode::format, "{}: the file is damaged: its tokens", path);
  }
  return Opened{std::move(file), header, std::move(tokens)};
}

/// The state, or why there is none.
Result<Session> import(const Opened& opened, const Engine& engine, uint64_t context,
                       const std::string& numerics) {
  const Header& header = opened.header;
  const StateLayout& layout = engine.state_layout();
  DS4_ASSIGN(const std::string fingerprint, state_fingerprint(engine, numerics));
  if (std::string_view(header.fingerprint, fingerprint_size) != fingerprint) {
    return fail(ErrorCode::format, "it was saved with other weights or options");
  }
  const size_t blocks = opened.tokens.size() / state_block_tokens;
  const size_t frontier = layout.frontier_bytes(opened.tokens.size());
  const size_t start = sizeof(Header) + opened.tokens.size() * sizeof(Token);
  // No overflow: the tokens are in memory, and a state is some kilobytes for each.
  const size_t size =
      start + blocks * (layout.block_bytes() + sizeof(Checksum)) + frontier + sizeof(Checksum);
  const std::span<const std::byte> bytes = opened.file.bytes();
  if (header.block_bytes != layout.block_bytes() || header.frontier_bytes != frontier ||
      bytes.size() != size) {
    return fail(ErrorCode::format, "its state is cut off or damaged");
  }
  DS4_ASSIGN(StateImport state, engine.import_state(opened.tokens, context));
  Pieces pieces(bytes.subspan(start));
  for (size_t block = 0; block < blocks; ++block) {
    const auto piece = pieces.take_checked(layout.block_bytes(), first_block_number + block);
    if (!piece) return fail(ErrorCode::format, "its state is damaged");
    DS4_TRY(state.add_block(*piece));
    drop_mapped_pages(*piece);
  }
  const auto piece = pieces.take_checked(frontier, first_block_number + blocks);
  if (!piece) return fail(ErrorCode::format, "its state is damaged");
  return state.finish(*piece);
}

Result<SavedSession> load(const std::string& path, const Engine& engine, uint64_t context,
                          const std::string& numerics) {
  DS4_ASSIGN(Opened opened, open_tokens(path));
  if (opened.header.vocabulary != vocabulary_checksum(engine)) {
    return fail(ErrorCode::invalid_argument, "{} was saved with another tokenizer", path);
  }
  for (const Token token : opened.tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= engine.info().vocabulary) {
      return fail(ErrorCode::format, "{}: token {} is outside the vocabulary", path, token);
    }
  }
  if (opened.tokens.size() >= context) {
    return fail(ErrorCode::context_full, "the session in {} has {} tokens, the context is {}", path,
                opened.tokens.size(), context);
  }
  SavedSession result;
  auto session = import(opened, engine, context, numerics);
  if (session) {
    result.session = std::move(*session);
  } else if (session.error().code == ErrorCode::format || session.error().code == ErrorCode::not_finite) {
    result.lost = fmt::format("{}: {}", path, session.error().message);
  } else {
    return session.error();
  }
  result.tokens = std::move(opened.tokens);
  result.preamble_tokens = opened.header.preamble_tokens;
  return result;
}

}  // namespace

Result<void> save_session(const std::string& path, const Engine& engine, const Session& session,
                          size_t preamble_tokens, const std::string& numerics) {
  return catch_bad_alloc("a saved session",
                         [&] { return save(path, engine, session, preamble_tokens, numerics); });
}

Result<SavedSession> load_session(const std::string& path, const Engine& engine, uint64_t context,
                                  const std::string& numerics) {
  return catch_bad_alloc("a saved session", [&] { return load(path, engine, context, numerics); });
}

}  // namespace ds4::store
