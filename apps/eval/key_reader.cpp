#include "key_reader.hpp"

#include <unistd.h>

#include <array>
#include <cerrno>

namespace ds4::eval {

std::optional<EvalKey> EvalKeyDecoder::next() {
  while (!pending_.empty()) {
    size_t used = 1;
    std::optional<EvalKey> key;
    switch (pending_[0]) {
      case 'p':
      case 'P':
        key = EvalKey::pause;
        break;
      case 'q':
      case 'Q':
        key = EvalKey::quit;
        break;
      case '\r':
      case '\n':
        key = EvalKey::enter;
        break;
      case '\x1b':
        if (pending_.size() == 1) return {};
        if (pending_[1] != '[' && pending_[1] != 'O') break;  // Escape, and another key
        used = 2;
        while (used < pending_.size() && (pending_[used] < '@' || pending_[used] > '~')) ++used;
        if (used == pending_.size()) return {};
        if (pending_[used] == 'A') key = EvalKey::up;
        if (pending_[used] == 'B') key = EvalKey::down;
        ++used;
        break;
      default:
        break;
    }
    pending_.erase(0, used);
    if (key) return key;
  }
  return {};
}

void EvalKeyDecoder::idle() {
  pending_.clear();
}

KeyReader::KeyReader(int descriptor)
    : descriptor_(descriptor), thread_([this](const std::stop_token& stop) { read_keys(stop); }) {}

KeyReader::~KeyReader() {
  thread_.request_stop();
  thread_.join();
}

void KeyReader::read_keys(const std::stop_token& stop) {
  EvalKeyDecoder decoder;
  std::array<char, 64> buffer{};
  while (!stop.stop_requested()) {
    const ssize_t count = ::read(descriptor_, buffer.data(), buffer.size());
    if (count < 0 && errno != EINTR && errno != EAGAIN) return;  // the terminal is gone
    if (count <= 0) {
      if (count == 0) decoder.idle();
      // A terminal that hung up returns at once.
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    decoder.feed({buffer.data(), static_cast<size_t>(count)});
    const std::lock_guard lock(mutex_);
    while (const auto key = decoder.next()) keys_.push_back(*key);
    arrived_.notify_one();
  }
}

std::optional<EvalKey> KeyReader::take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, patience, [&] { return !keys_.empty(); });
  if (keys_.empty()) return {};
  const EvalKey key = keys_.front();
  keys_.pop_front();
  return key;
}

}  // namespace ds4::eval
