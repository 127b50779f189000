#include "key_reader.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

namespace ds4::eval {
namespace {

TEST(EvalKeyDecoder, KnowsItsKeys) {
  EvalKeyDecoder decoder;
  decoder.feed("pQ\r\nx\x1b[A\x1bOB\x1b[5~\x1b[1;2A");
  for (const EvalKey key : {EvalKey::pause, EvalKey::quit, EvalKey::enter, EvalKey::enter, EvalKey::up,
                            EvalKey::down, EvalKey::up}) {
    EXPECT_EQ(decoder.next(), key);
  }
  EXPECT_EQ(decoder.next(), std::nullopt);
}

TEST(EvalKeyDecoder, WaitsForTheRestOfASequence) {
  EvalKeyDecoder decoder;
  for (const char* bytes : {"\x1b", "["}) {
    decoder.feed(bytes);
    EXPECT_EQ(decoder.next(), std::nullopt);
  }
  decoder.feed("A");
  EXPECT_EQ(decoder.next(), EvalKey::up);
  decoder.feed("\x1b");
  EXPECT_EQ(decoder.next(), std::nullopt);
  decoder.idle();
  decoder.feed("A");
  EXPECT_EQ(decoder.next(), std::nullopt);
}

TEST(KeyReader, QueuesKeysAndEnds) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  {
    KeyReader reader(ends[0]);
    EXPECT_EQ(reader.take(), std::nullopt);
    ASSERT_EQ(write(ends[1], "pq", 2), 2);
    EXPECT_EQ(reader.take(std::chrono::seconds(10)), EvalKey::pause);
    EXPECT_EQ(reader.take(std::chrono::seconds(10)), EvalKey::quit);
    close(ends[1]);
  }
  close(ends[0]);
}

}  // namespace
}  // namespace ds4::eval
