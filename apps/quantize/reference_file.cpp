#include "reference_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.hpp"
#include "ds4/sampling.hpp"

namespace ds4::quantize {
namespace {

constexpr std::string_view magic = "DS4SCORE";
constexpr uint32_t version = 1;
constexpr size_t hash_bytes = 32;
constexpr uint32_t longest_name = 4096;
constexpr uint32_t largest_vocabulary = 1 << 24;
// Rounding of the log-probabilities to F32 moves their sum by less.
constexpr double sum_tolerance = 1e-3;
constexpr float no_logprob = -std::numeric_limits<float>::infinity();

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_text(std::string& out, std::string_view text) {
  append(out, static_cast<uint32_t>(text.size()));
  out += text;
}

/// Takes what was asked for from the front of the bytes, or remembers that it was not there.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    T value{};
    if (const auto bytes = take_bytes(sizeof value); !bytes.empty())
      std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::span<const std::byte> take_bytes(uint64_t count) {
    if (failed_ || count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const auto bytes = rest_.first(static_cast<size_t>(count));
    rest_ = rest_.subspan(static_cast<size_t>(count));
    return bytes;
  }
  std::string take_text() {
    const auto length = take<uint32_t>();
    if (length > longest_name) failed_ = true;
    const auto bytes = take_bytes(length);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  bool failed() const { return failed_; }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

Error damaged(const std::string& path, std::string_view what) {
  return fail(ErrorCode::format, "{}: this is no undamaged reference file of ds4-quantize score: {}", path,
              what);
}

}  // namespace

LogSoftmax::LogSoftmax(std::span<const float> logits) {
  float largest = no_logprob;
  for (const float logit : logits) largest = std::max(largest, logit);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - double{largest});
  log_sum_ = double{largest} + std::log(sum);
}

ReferenceWriter::ReferenceWriter(cli::AtomicFile file, const ReferenceHeader& header)
    : file_(std::move(file)), vocabulary_(header.vocabulary), kept_(header.kept) {}

Result<ReferenceWriter> ReferenceWriter::create(const std::string& path, const ReferenceHeader& header) {
  DS4_ASSIGN(cli::AtomicFile file, cli::AtomicFile::create(path));
  ReferenceWriter writer(std::move(file), header);
  std::string bytes(magic);
  append(bytes, version);
  append(bytes, header.vocabulary);
  append(bytes, header.kept);
  append_text(bytes, header.vocabulary_fingerprint);
  append_text(bytes, header.model.substr(0, longest_name));
  DS4_TRY(writer.put(bytes));
  return writer;
}

Result<void> ReferenceWriter::put(const std::string& bytes) {
  hash_.add(bytes.data(), bytes.size());
  return file_.write(bytes);
}

Result<void> ReferenceWriter::begin_item(const ScoreItem& item) {
  std::string bytes;
  append(bytes, static_cast<uint32_t>(item.kind));
  append(bytes, static_cast<uint32_t>(item.tokens.size()));
  append(bytes, static_cast<uint32_t>(item.begin));
  append_text(bytes, std::string_view(item.id).substr(0, longest_name));
  for (const Token token : item.tokens) append(bytes, static_cast<int32_t>(token));
  return put(bytes);
}

Result<void> ReferenceWriter::add_position(std::span<const float> logits, Token target) {
  const LogSoftmax log_softmax(logits);
  std::string bytes;
  append(bytes, static_cast<float>(log_softmax(logits[static_cast<size_t>(target)])));
  if (kept_ == vocabulary_) {
    for (const float logit : logits) append(bytes, static_cast<float>(log_softmax(logit)));
    return put(bytes);
  }
  order_.resize(vocabulary_);
  std::iota(order_.begin(), order_.end(), 0);
  const auto better = [&](Token a, Token b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + kept_, order_.end(), better);
  double rest = 0;
  for (size_t i = kept_; i < order_.size(); ++i)
    rest += std::exp(log_softmax(logits[static_cast<size_t>(order_[i])]));
  append(bytes, rest > 0 ? static_cast<float>(std::log(rest)) : no_logprob);
  for (size_t i = 0; i < kept_; ++i) append(bytes, static_cast<uint32_t>(order_[i]));
  for (size_t i = 0; i < kept_; ++i)
    append(bytes, static_cast<float>(log_softmax(logits[static_cast<size_t>(order_[i])])));
  return put(bytes);
}

Result<void> ReferenceWriter::commit() {
  DS4_TRY(file_.write(hash_.hexadecimal()));
  return file_.commit();
}

size_t ReferenceFile::position_bytes() const {
  const size_t kept = header_.kept;
  return kept == header_.vocabulary ? 4 + 4 * kept : 8 + 8 * kept;
}

Result<ReferenceFile> ReferenceFile::open(const std::string& path) {
  DS4_ASSIGN(MappedFile mapped, MappedFile::open(path));
  ReferenceFile file(std::move(mapped));
  const auto bytes = file.file_.bytes();
  if (bytes.size() < magic.size() + hash_bytes || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    return damaged(path, "it does not begin as one");
  const auto content = bytes.first(bytes.size() - hash_bytes);
  Reader reader(content.subspan(magic.size()));
  if (const auto found = reader.take<uint32_t>(); found != version)
    return fail(ErrorCode::unsupported, "{}: version {} of reference files is not known, only {}", path,
                found, version);
  ReferenceHeader& header = file.header_;
  header.vocabulary = reader.take<uint32_t>();
  header.kept = reader.take<uint32_t>();
  header.vocabulary_fingerprint = reader.take_text();
  header.model = reader.take_text();
  if (reader.failed() || header.vocabulary == 0 || header.vocabulary > largest_vocabulary ||
      header.kept == 0 || header.kept > header.vocabulary)
    return damaged(path, "its counts are wrong");
  ContentHash hash;
  hash.add(content.data(), content.size());
  file.fingerprint_ = hash.hexadecimal();
  if (std::memcmp(file.fingerprint_.data(), content.data() + content.size(), hash_bytes) != 0)
    return damaged(path, "the hash at its end is wrong");
  while (reader.left() > 0) {
    const auto kind = reader.take<uint32_t>(), tokens = reader.take<uint32_t>(),
               begin = reader.take<uint32_t>();
    ScoreItem item{reader.take_text(), static_cast<ItemKind>(kind), {}, begin};
    const auto ids = reader.take_bytes(uint64_t{tokens} * sizeof(int32_t));
    if (reader.failed() || kind > 1 || begin == 0 || begin >= tokens)
      return damaged(path, "an item is wrong");
    item.tokens.resize(tokens);
    std::memcpy(item.tokens.data(), ids.data(), ids.size());
    for (const Token token : item.tokens) {
      if (token < 0 || static_cast<uint32_t>(token) >= header.vocabulary)
        return damaged(path, "a token is outside the vocabulary");
    }
    file.offsets_.push_back(bytes.size() - hash_bytes - reader.left());
    // Both factors are below 2^32.
    reader.take_bytes(uint64_t{item.scored()} * file.position_bytes());
    if (reader.failed()) return damaged(path, "it ends early");
    file.items_.push_back(std::move(item));
  }
  if (file.items_.empty()) return damaged(path, "it has no items");
  return file;
}

Result<void> ReferenceFile::read(size_t item, size_t index, ReferencePosition& position) const {
  const bool all = header_.kept == header_.vocabulary;
  Reader reader(file_.bytes().subspan(offsets_[item] + index * position_bytes(), position_bytes()));
  position.target_logprob = reader.take<float>();
  position.rest_logprob = all ? no_logprob : reader.take<float>();
  position.ids.resize(all ? 0 : header_.kept);
  position.logprobs.resize(header_.kept);
  const auto ids = reader.take_bytes(position.ids.size() * sizeof(Token));
  if (!ids.empty()) std::memcpy(position.ids.data(), ids.data(), ids.size());
  const auto logprobs = reader.take_bytes(position.logprobs.size() * sizeof(float));
  std::memcpy(position.logprobs.data(), logprobs.data(), logprobs.size());
  double sum = std::exp(double{position.rest_logprob});
  for (const float logprob : position.logprobs) sum += std::exp(double{logprob});
  const bool known = std::all_of(position.ids.begin(), position.ids.end(), [&](Token id) {
    return id >= 0 && static_cast<uint32_t>(id) < header_.vocabulary;
  });
  if (!known || !(std::fabs(sum - 1) < sum_tolerance) || std::isnan(position.target_logprob))
    return damaged(file_.path(), "a position holds no probabilities");
  position.likeliest = all ? argmax(position.logprobs) : position.ids[0];
  return {};
}

}  // namespace ds4::quantize
