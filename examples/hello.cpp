// The smallest chat: one question, the most likely answer, streamed.
//   ds4_hello MODEL.gguf "What is the capital of Japan?"
#include <cstdio>
#include <string>
#include <vector>

#include "ds4/chat.hpp"
#include "ds4/engine.hpp"

namespace {

int fail(const ds4::Error& error) {
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s MODEL.gguf QUESTION\n", argv[0]);
    return 2;
  }
  auto engine = ds4::Engine::open({.model_path = argv[1]});
  if (!engine) return fail(engine.error());
  auto session = engine->create_session(4096);
  if (!session) return fail(session.error());

  const std::vector<ds4::ChatMessage> messages{{.role = ds4::Role::user, .content = argv[2]}};
  const auto prompt = ds4::render_chat(messages, {.think = ds4::ThinkMode::none});
  const auto tokens = prompt.encode(engine->tokenizer());
  if (auto done = session->sync(tokens); !done) return fail(done.error());

  ds4::Utf8Stream text;  // a token may end in the middle of a character
  while (session->position() < session->context()) {
    const auto chosen = session->argmax();
    if (!chosen) return fail(chosen.error());
    const ds4::Token token = *chosen;
    if (token == engine->tokenizer().special().eos) break;
    std::fputs(text.push(engine->tokenizer().decode(token)).c_str(), stdout);
    std::fflush(stdout);
    if (auto done = session->eval(token); !done) return fail(done.error());
  }
  std::puts(text.flush().c_str());
  return 0;
}
