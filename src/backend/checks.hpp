// What every backend asks of the arguments of a call before it computes anything.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/backend.hpp"
#include "base/error.hpp"
#include "model/shape.hpp"

namespace ds4::backend {

/// At least one token, all inside the vocabulary.
inline Result<void> check_tokens(std::span<const Token> tokens, uint32_t vocabulary) {
  if (tokens.empty()) return fail(ErrorCode::invalid_argument, "no tokens to evaluate");
  for (const Token token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= vocabulary) {
      return fail(ErrorCode::invalid_argument, "token {} is outside the vocabulary of {}", token, vocabulary);
    }
  }
  return {};
}

/// The tables of rows end where the model's context does.
inline Result<void> check_context(const Sequence& sequence, size_t tokens, const model::ModelShape& shape) {
  const uint64_t position = sequence.position();
  if (position <= shape.max_context && tokens <= shape.max_context - position) return {};
  return fail(ErrorCode::context_full, "{} tokens after {} are more than the {} that the model declares",
              tokens, position, shape.max_context);
}

inline Result<void> check_prefill(const Sequence& sequence, std::span<const Token> tokens, size_t logit_rows,
                                  size_t logit_values, const model::ModelShape& shape) {
  DS4_TRY(check_tokens(tokens, shape.vocabulary));
  DS4_TRY(check_context(sequence, tokens.size(), shape));
  if (logit_rows > tokens.size() || logit_values < logit_rows * shape.vocabulary) {
    return fail(ErrorCode::invalid_argument,
                "{} rows of logits do not fit a call with {} tokens and {} values", logit_rows, tokens.size(),
                logit_values);
  }
  return {};
}

/// Sizes the values of a capture, if there is one.
inline Result<void> prepare_capture(Capture* capture, size_t tokens, size_t layers, size_t width) {
  if (capture == nullptr) return {};
  if (capture->rows == 0 || capture->rows > tokens) {
    return fail(ErrorCode::invalid_argument, "cannot capture {} rows of a call with {} tokens", capture->rows,
                tokens);
  }
  capture->values.assign(layers * capture->rows * width, 0.0f);
  return {};
}

inline Result<void> check_parts(const StateParts& parts, size_t bytes, const model::ModelShape& shape) {
  if (parts.layers.size() == shape.layers && bytes == parts.bytes) return {};
  return fail(ErrorCode::invalid_argument,
              "{} bytes do not fit a part of the state, which has {} in {} layers", bytes, parts.bytes,
              parts.layers.size());
}

/// The image holds the parts, and they fill the room of `bytes`.
inline Result<void> check_export(const StateImage& image, const StateParts& parts, size_t bytes,
                                 const model::ModelShape& shape) {
  DS4_TRY(check_parts(parts, bytes, shape));
  const uint64_t position = image.position();
  if (parts.is_frontier() ? parts.position == position : parts.position <= position) return {};
  return fail(ErrorCode::invalid_argument, "the state after {} tokens cannot be taken from one of {}",
              parts.position, position);
}

/// The sequence holds nothing but perhaps imported blocks.
inline Result<void> check_import(const Sequence& sequence, const StateParts& parts, size_t bytes,
                                 const model::ModelShape& shape) {
  DS4_TRY(check_parts(parts, bytes, shape));
  if (parts.position > shape.max_context) {
    return fail(ErrorCode::context_full, "a state of {} tokens is more than the {} that the model declares",
                parts.position, shape.max_context);
  }
  if (sequence.position() == 0) return {};
  return fail(ErrorCode::invalid_argument, "state cannot be imported into a sequence that has {} tokens",
              sequence.position());
}

inline Error no_logits(uint64_t position) {
  return fail(ErrorCode::invalid_argument, "there are no logits at position {}", position);
}

inline Error out_of_order(uint64_t position) {
  return fail(ErrorCode::invalid_argument,
              "the state up to token {} does not follow what was imported before", position);
}

inline Error cannot_retract(size_t count, uint64_t position) {
  return fail(ErrorCode::invalid_argument, "cannot take back {} of {} tokens: only the newest {} can be",
              count, position, max_decode_rows);
}

inline Result<void> check_draft(const BackendInfo& info, const Sequence& sequence,
                                const DraftRequest& request, uint32_t vocabulary) {
  if (!info.drafter) return fail(ErrorCode::unsupported, "no drafter (MTP) is loaded");
  if (sequence.position() == 0) {
    return fail(ErrorCode::invalid_argument, "nothing to draft from: the sequence is empty");
  }
  return check_tokens({&request.next, 1}, vocabulary);
}

/// 1 to max_decode_rows rows of different sequences.
inline Result<void> check_decode(std::span<const DecodeRow> rows, size_t logit_values,
                                 const model::ModelShape& shape) {
  if (rows.empty() || rows.size() > max_decode_rows) {
    return fail(ErrorCode::invalid_argument, "a decode batch has 1 to {} rows, not {}", max_decode_rows,
                rows.size());
  }
  if (logit_values != 0 && logit_values < rows.size() * shape.vocabulary) {
    return fail(ErrorCode::invalid_argument, "{} logits are too few for {} rows", logit_values, rows.size());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    DS4_TRY(check_tokens({&rows[i].token, 1}, shape.vocabulary));
    DS4_TRY(check_context(*rows[i].sequence, 1, shape));
    for (size_t j = 0; j < i; ++j) {
      if (rows[i].sequence != rows[j].sequence) continue;
      return fail(ErrorCode::invalid_argument, "rows {} and {} of a decode batch are the same sequence", j,
                  i);
    }
  }
  return {};
}

inline Result<void> check_verify(const Sequence& sequence, std::span<const Token> tokens,
                                 const model::ModelShape& shape) {
  DS4_TRY(check_tokens(tokens, shape.vocabulary));
  DS4_TRY(check_context(sequence, tokens.size(), shape));
  if (tokens.size() <= max_decode_rows) return {};
  return fail(ErrorCode::invalid_argument, "{} tokens are too many to verify; the most are {}", tokens.size(),
              max_decode_rows);
}

inline Result<void> check_has_logits(const Sequence& sequence, size_t behind = 0) {
  if (sequence.logit_summary(behind) != nullptr) return {};
  return no_logits(sequence.position() - std::min(behind, sequence.position()));
}

/// A token can be chosen from the logits after `position` tokens.
inline Result<void> check_summary(const sampling::LogitSummary& summary, uint64_t position) {
  if (!summary.has_nan && summary.best >= 0) return {};
  return fail(ErrorCode::not_finite,
              "position {}: the model computed {} instead of logits; its weights or this session's state are "
              "damaged",
              position, summary.has_nan ? "NaN" : "no finite value");
}

/// The sequence has logits after the token `behind` tokens before the last, and a token can be chosen from
/// them.
inline Result<void> check_choice(const Sequence& sequence, size_t behind = 0) {
  DS4_TRY(check_has_logits(sequence, behind));
  return check_summary(*sequence.logit_summary(behind), sequence.position() - behind);
}

/// The place for the logits of one sequence that has some.
inline Result<void> check_logits(const Sequence& sequence, size_t logit_values, uint32_t vocabulary) {
  DS4_TRY(check_has_logits(sequence));
  if (logit_values >= vocabulary) return {};
  return fail(ErrorCode::invalid_argument, "{} values are too few for {} logits", logit_values, vocabulary);
}

}  // namespace ds4::backend
