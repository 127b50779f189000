// The library in one page: load a model, ask one question, print the answer token by token.
// usage: hello MODEL.gguf "QUESTION"
#include <cstdio>
#include <string>

#include "ds4/chat.hpp"
#include "ds4/engine.hpp"
#include "ds4/sampling.hpp"

namespace {

int report(const ds4::Error& error) {
  std::fprintf(stderr, "hello: %s\n", error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: hello MODEL.gguf \"QUESTION\"\n");
    return 2;
  }
  ds4::EngineOptions options;
  options.model_path = argv[1];
  auto engine = ds4::Engine::open(options);
  if (!engine) return report(engine.error());
  auto session = engine->create_session(4096);
  if (!session) return report(session.error());

  ds4::ChatOptions chat;
  chat.think = ds4::ThinkMode::none;
  const ds4::Tokenizer& tokenizer = engine->tokenizer();
  const auto prompt = ds4::render_chat({{ds4::Role::user, argv[2]}}, chat).encode(tokenizer);
  if (auto synced = session->sync(prompt); !synced) return report(synced.error());

  while (session->position() < session->context()) {
    const ds4::Token token = ds4::argmax(session->logits());
    if (token == tokenizer.special().eos) break;
    const std::string bytes = tokenizer.decode(token);
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
    if (auto evaluated = session->eval(token); !evaluated) return report(evaluated.error());
  }
  std::printf("\n");
  return 0;
}
