// A model made by hand whose text is known: it says the alphabet, unless a direction shouts it down.
#pragma once

#include <string>
#include <vector>

#include "ds4/error.hpp"
#include "ds4/steering.hpp"
#include "model/shape.hpp"

namespace ds4::testing {

/// What the model says after </think> or after "!" when nothing shouts; then it ends its reply.
inline constexpr const char* alphabet_text = "abcdefghij";

/// A tiny model in which one part of one layer, the attention of layer 1 or the feed-forward experts of layer
/// 4, adds the direction of alphabet_directions() to every token, eight times as long as what names the
/// token. The output reads that direction as "!", so the model says nothing but "!". Without the direction a
/// letter is followed by the next one, since the rows of the output are the embeddings of the tokens before.
/// All other matrices are random and damped; every number is F32.
Result<void> write_alphabet_model(const std::string& path, Component shouting);

model::ModelShape alphabet_shape();

/// [layers][width]: the direction in the layer whose part shouts, zero in the others.
std::vector<float> alphabet_directions(Component shouting);

}  // namespace ds4::testing
