// tests/support/throws_error.hpp — matchers for the Error that a call ends with.
//
//   EXPECT_THAT([&] { engine.step(); }, ThrowsError(ExitCode::kRefused, HasSubstr("out of
//   memory"))); EXPECT_THAT(co_await outcome_of([&] { return event.wait(); }),
//   ThrowsError<DeviceError>("..."));
//
// Every Error that is matched has to be one line.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <type_traits>

#include <gmock/gmock.h>

#include "runtime/task.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

/// A call that throws an E with this text: a string, or a matcher of one.
template <class E = Error, class Text>
  requires(!std::is_same_v<Text, ExitCode>)
auto ThrowsError(Text text) {
  using namespace ::testing;
  return ThrowsMessage<E>(AllOf(MatcherCast<std::string>(text), Not(HasSubstr("\n"))));
}

/// ... and with this exit code.
template <class E = Error, class Text>
auto ThrowsError(ExitCode code, Text text) {
  using namespace ::testing;
  return Throws<E>(AllOf(
      Property("code", &Error::code, code),
      Property("what", &Error::what, AllOf(MatcherCast<std::string>(text), Not(HasSubstr("\n"))))));
}
template <class E = Error>
auto ThrowsError(ExitCode code) {
  return ThrowsError<E>(code, ::testing::_);
}

/// The text of the Error that `call` has to end with, of that exit code: for helpers that many
/// lines of a table go through. "no error" where it returns.
template <class Call>
std::string error_text(Call call, ExitCode code = ExitCode::kUserInput) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
    return error.what();
  }
  return "no error";
}

/// Awaits what `make` returns; the call that is handed back throws what that threw.
template <class Make>
Task<std::function<void()>> outcome_of(Make make) {
  try {
    (void)co_await make();
  } catch (...) {
    co_return [error = std::current_exception()] { std::rethrow_exception(error); };
  }
  co_return [] {};
}

}  // namespace tandem
