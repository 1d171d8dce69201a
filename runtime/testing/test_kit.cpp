#include "runtime/testing/test_kit.hpp"

#include <exception>

#include <fmt/format.h>

namespace tandem {
namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// splitmix64.
std::uint64_t next_random(std::uint64_t& state) noexcept {
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t z = state;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

}  // namespace

bool MessagePattern::is_for(const TappedMessage& envelope) const {
  return target != nullptr ? envelope.target() == target : to.empty() || envelope.to() == to;
}

bool MessagePattern::matches(const TappedMessage& envelope) const {
  return is(envelope) && is_for(envelope) && (from.empty() || envelope.from() == from) &&
         (fits == nullptr || fits(envelope));
}

std::string MessagePattern::text() const {
  return fmt::format("{}{}{}{}{}{}", message, from.empty() ? "" : " from ", from,
                     to.empty() ? "" : " to ", to, fits == nullptr ? "" : " that fits");
}

TestKit::TestKit() { loop_.set_message_tap(this); }

TestKit::~TestKit() {
  if (std::uncaught_exceptions() > 0) {
    on_failure_ = [](const std::string&, const Where&) {};  // one trouble at a time
  }
  try {
    finish();
  } catch (const Unexpected& error) {
    fmt::print(stderr, "{}\n", error.what());
  }
  actors_.clear();
}

void TestKit::finish(Where where) {
  loop_.set_message_tap(nullptr);
  held_.clear();
  scope_.request_stop();
  for (detail::Mailbox* mailbox = loop_.registry().first_mailbox; mailbox != nullptr;
       mailbox = mailbox->next_on_loop()) {
    mailbox->stop();
  }
  settle(where);
  if (scope_.running() != 0) {
    fail("these do not end when they are asked to stop:\n" + scope_.describe(), where);
  }
}

bool TestKit::carry_out(Verb verb, const MessagePattern& pattern, const Where& where) {
  settle(where);
  const std::size_t any = first_match(pattern);
  switch (verb) {
    case Verb::kDisallow:
      if (any != kNone) {
        fail(fmt::format("disallowed, but it waits: {}", pattern.text()), where);
      }
      return any == kNone;
    case Verb::kExpect:
    case Verb::kAllow: {
      const std::size_t next = first_for(pattern);
      if (next == kNone || !pattern.matches(held_[next])) {
        if (verb == Verb::kExpect) {
          fail(fmt::format("expected next: {}", pattern.text()), where);
        }
        return false;
      }
      take(next).deliver();
      break;
    }
    case Verb::kPrepone:
    case Verb::kPostpone:
    case Verb::kDrop: {
      if (any == kNone) {
        fail(fmt::format("there is none: {}", pattern.text()), where);
        return false;
      }
      TappedMessage envelope = take(any);
      if (verb == Verb::kPrepone) {
        held_.push_front(std::move(envelope));
      } else if (verb == Verb::kPostpone) {
        held_.push_back(std::move(envelope));
      } else {
        envelope.drop();
      }
      break;
    }
  }
  settle(where);
  return true;
}

std::size_t TestKit::first_match(const MessagePattern& pattern) const {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (pattern.matches(held_[i])) {
      return i;
    }
  }
  return kNone;
}

std::size_t TestKit::first_for(const MessagePattern& pattern) const {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    if (pattern.is_for(held_[i])) {
      return i;
    }
  }
  return kNone;
}

TappedMessage TestKit::take(std::size_t index) {
  TappedMessage envelope = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  return envelope;
}

void TestKit::reorder(std::uint64_t seed) {
  settle();
  for (std::size_t i = held_.size(); i > 1; --i) {
    std::swap(held_[i - 1], held_[next_random(seed) % i]);
  }
}

bool TestKit::run_one() {
  settle();
  if (held_.empty()) {
    return false;
  }
  take(0).deliver();
  settle();
  return true;
}

std::size_t TestKit::run_until_idle(std::size_t most, Where where) {
  std::size_t count = 0;
  while (count < most && run_one()) {
    ++count;
  }
  if (!held_.empty()) {
    fail(fmt::format("not idle after {} messages", most), where);
  }
  return count;
}

std::string TestKit::pending() const {
  std::string text;
  std::size_t number = 0;
  for (const TappedMessage& envelope : held_) {
    text += fmt::format("  {}. {} from {} to {}\n", ++number, envelope.message(), envelope.from(),
                        envelope.to());
  }
  return text.empty() ? "  (no message waits)\n" : text;
}

void TestKit::advance(Duration by, Where where) {
  const TimePoint end = clock_.now() + by;
  settle(where);
  while (loop_.next_deadline() <= end) {
    clock_.advance(std::max(loop_.next_deadline() - clock_.now(), Duration::zero()));
    settle(where);
  }
  clock_.advance(end - clock_.now());
}

void TestKit::settle(Where where) {
  if (loop_.run(&TestKit::until_quiet, kMostTurns) >= kMostTurns) {
    fail("a task never comes to rest: it yields for ever\n" + scope_.describe(), where);
  }
}

// Its own timer is due at once, and fires after every other that is due.
Task<std::size_t> TestKit::until_quiet(std::size_t most) {
  EventLoop& loop = EventLoop::current();
  std::size_t turns = 0;
  do {
    co_await sleep_until(loop.now());
    while (loop.has_ready_ops() && turns < most) {
      ++turns;
      co_await yield();
    }
  } while (loop.next_deadline() <= loop.now() && ++turns < most);
  co_return turns;
}

void TestKit::fail(const std::string& what, const Where& where) {
  const std::string text = fmt::format("[test kit] {}\nwaiting:\n{}", what, pending());
  if (on_failure_ != nullptr) {
    on_failure_(text, where);
    return;
  }
  throw Unexpected(fmt::format("{}:{}: {}", where.file_name(), where.line(), text));
}

}  // namespace tandem
