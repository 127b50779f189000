// Questions of the kinds that the bundled model was trained on, in any number and at chosen lengths.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/tokenizer.hpp"

namespace ds4::testing {

class NanoPrompts {
 public:
  explicit NanoPrompts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// Half are short questions as they come, 7 to about 45 tokens, directly or with reasoning. The others are
  /// texts with a question, of 128, 256, 384 or 512 tokens or up to five fewer or more, so that windows of 4
  /// and 128 end at every place near the end of a prompt.
  std::vector<std::vector<Token>> make(size_t count) {
    std::vector<std::vector<Token>> prompts;
    for (size_t i = 0; i < count; ++i) {
      prompts.push_back(i % 2 == 0 ? question() : text_of(128 * (1 + i / 2 % 4) + i / 8 % 11 - 5));
    }
    return prompts;
  }

  /// A question that follows a reply without its EOS.
  std::vector<Token> next_turn() {
    std::vector<Token> tokens = question();
    tokens.front() = tokenizer_.special().eos;  // in place of BOS
    return tokens;
  }

 private:
  size_t below(size_t bound) {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<size_t>((seed_ >> 33) % bound);
  }
  template <size_t N>
  const char* one_of(const std::array<const char*, N>& words) {
    return words[below(N)];
  }

  std::vector<Token> render(const std::string& system, const std::string& text, ThinkMode think) const {
    std::vector<ChatMessage> messages;
    if (!system.empty()) messages.push_back({.role = Role::system, .content = system});
    messages.push_back({.role = Role::user, .content = text});
    ChatOptions options;
    options.think = think;
    return render_chat(messages, options).encode(tokenizer_);
  }

  std::vector<Token> question() {
    const std::array<const char*, 8> countries{"Japan", "Portugal", "Kenya", "Uruguay",
                                               "Italy", "France",   "Spain", "Norway"};
    const std::array<const char*, 4> sums{"What is {} + {}?", "Calculate {} + {}.", "Compute {} - {}.",
                                          "What is {} - {}?"};
    const std::array<const char*, 4> facts{"What is the capital of {}?", "What is the currency of {}?",
                                           "On which continent is {}?", "What language is spoken in {}?"};
    const std::array<const char*, 4> problems{
        "Hugo has {} oranges and buys {} more. How many oranges does Hugo have now?",
        "Elena has {} plums and gives {} to Felix. How many plums are left?",
        "Greta is {} years old and Carlo is {} years older. How old is Carlo?",
        "There are {} boxes with {} pears in each box. How many pears are there?"};
    const std::array<const char*, 3> systems{"You are a helpful assistant", "Be succinct.", ""};
    const std::string system = systems[below(3)];
    const size_t first = 10 + below(900), second = 5 + below(600);
    switch (below(5)) {
      case 0:
      case 1:
        return render(system, fmt::format(fmt::runtime(one_of(sums)), first, second), ThinkMode::none);
      case 2:
        return render(system, fmt::format(fmt::runtime(one_of(sums)), first, second), ThinkMode::high);
      case 3:
        return render("", fmt::format(fmt::runtime(one_of(problems)), 10 + first % 90, 2 + second % 8),
                      ThinkMode::high);
      default:
        return render(system, fmt::format(fmt::runtime(one_of(facts)), one_of(countries)), ThinkMode::none);
    }
  }

  // A text with about `length` tokens, until one has exactly so many.
  std::vector<Token> text_of(size_t length) {
    const std::array<const char*, 6> colours{"velvet", "iron", "crystal", "marble", "copper", "silver"};
    const std::array<const char*, 6> places{"safe", "cabin", "tower", "vault", "barn", "gate"};
    const std::array<const char*, 6> names{"Tom", "Greta", "Lina", "Omar", "Emma", "Rosa"};
    const std::array<const char*, 6> cities{"Hamburg", "Porto", "Rome", "Madrid", "Palermo", "Lyon"};
    const std::array<const char*, 4> fillers{
        "The wind was calm near the old harbor.", "The clock in the square was late.",
        "Two birds sat on the roof and sang.", "The soup was still warm."};
    while (true) {
      std::string text = "Read this text.", thing, somebody;
      std::vector<Token> tokens;
      while (tokens.size() < length) {
        switch (below(5)) {
          case 0:
            text += fmt::format(" {} lives in {}.", somebody = one_of(names), one_of(cities));
            break;
          case 1:
            text += std::string(" ") + one_of(fillers);
            break;
          default:
            thing = fmt::format("{} {}", one_of(colours), one_of(places));
            text += fmt::format(" The code of the {} is {}.", thing, 1000 + below(9000));
        }
        const std::string asked = somebody.empty() || below(2) == 0
                                      ? fmt::format("What is the code of the {}?", thing)
                                      : fmt::format("Where does {} live?", somebody);
        tokens = render("Be succinct.", fmt::format("{} Question: {}", text, asked), ThinkMode::none);
      }
      if (tokens.size() == length) return tokens;
    }
  }

  const Tokenizer& tokenizer_;
  uint64_t seed_ = 1;
};

}  // namespace ds4::testing
