// runtime/testing/expectation.hpp — the sentences of the test kit:
// kit.expect<Note>().from("writer").to(book).with(fits);
//
// A sentence is carried out when it ends (at its semicolon), or when its result is asked for. See
// test_kit.hpp.
#pragma once

#include <functional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/address.hpp"
#include "runtime/message_tap.hpp"

namespace tandem {

class TestKit;

enum class Verb : unsigned char { kExpect, kAllow, kDisallow, kPrepone, kPostpone, kDrop };

/// The messages that a sentence is about.
struct MessagePattern {
  const char* message = nullptr;
  bool (*is)(const TappedMessage& envelope) noexcept = nullptr;
  std::string from;              // "": any sender
  std::string to;                // "": any actor
  const void* target = nullptr;  // this very actor; null: by name
  std::function<bool(const TappedMessage&)> fits;

  [[nodiscard]] bool is_for(const TappedMessage& envelope) const;
  [[nodiscard]] bool matches(const TappedMessage& envelope) const;
  /// "Note from writer to book"
  [[nodiscard]] std::string text() const;
};

template <class M, Verb kVerb>
class Expectation {
 public:
  Expectation(TestKit& kit, std::source_location where) : kit_(kit), where_(where) {
    pattern_.message = detail::kTypeName<M>;
    pattern_.is = [](const TappedMessage& envelope) noexcept { return envelope.is<M>(); };
  }
  Expectation(const Expectation&) = delete;
  Expectation& operator=(const Expectation&) = delete;
  ~Expectation() noexcept(false) {
    if (!done_) {
      carry_out();
    }
  }

  /// The task or actor that sent it.
  Expectation& from(std::string_view name) & {
    return set([&] { pattern_.from = name; });
  }
  Expectation&& from(std::string_view name) && { return std::move(from(name)); }
  /// The actor it is for: by name, by address, or the actor itself.
  Expectation& to(std::string_view name) & {
    return set([&] { pattern_.to = name; });
  }
  Expectation&& to(std::string_view name) && { return std::move(to(name)); }
  template <class... Ms>
  Expectation& to(const Address<Ms...>& address) & {
    return set([&] {
      pattern_.to = address.name();
      pattern_.target = address.mailbox();
    });
  }
  template <class... Ms>
  Expectation&& to(const Address<Ms...>& address) && {
    return std::move(to(address));
  }
  template <class A>
    requires requires(const A& actor) { actor.address().mailbox(); }
  Expectation& to(const A& actor) & {
    return to(actor.address());
  }
  template <class A>
    requires requires(const A& actor) { actor.address().mailbox(); }
  Expectation&& to(const A& actor) && {
    return std::move(to(actor.address()));
  }
  /// The message is one for which fits(const M&) is true.
  template <class Fits>
    requires std::predicate<Fits, const M&>
  Expectation& with(Fits fits) & {
    return set([&] {
      pattern_.fits = [fits](const TappedMessage& envelope) { return fits(envelope.get<M>()); };
    });
  }
  template <class Fits>
    requires std::predicate<Fits, const M&>
  Expectation&& with(Fits fits) && {
    return std::move(with(std::move(fits)));
  }

  /// Carries the sentence out (once), and returns whether it holds.
  operator bool() const { return done_ ? result_ : carry_out(); }  // NOLINT: for conditions

 private:
  template <class Change>
  Expectation& set(Change change) {
    change();
    return *this;
  }
  bool carry_out() const;

  TestKit& kit_;
  std::source_location where_;
  MessagePattern pattern_;
  mutable bool done_ = false;
  mutable bool result_ = false;
};

}  // namespace tandem
