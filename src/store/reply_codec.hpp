// Sampled replies as bytes, for the disk (docs/formats.md §12.4).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/error.hpp"

namespace ds4::store {

std::vector<std::byte> serialize_sampled_reply(const SampledReply& reply);
/// Error: format, if the bytes are not those of one reply.
Result<SampledReply> parse_sampled_reply(std::span<const std::byte> bytes);

}  // namespace ds4::store
