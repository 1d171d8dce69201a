// runtime/actor.hpp — an object that handles one message at a time, on its loop.
//
// struct Self : Actor<Self, Messages...> has for each message M, or request R (`using Reply = X;`),
// one public handler:
//   void handle(M);               the next message is taken when the handler is done
//   Task<> handle(M);
//   X handle(R);
//   Task<X> handle(R);
//   void handle(R, ReplyTo<R>);   answered later (the Task<> form works, too)
// A handler that throws fails its asker, closes the actor and fails its scope (a child of Children
// is restarted, if its parent says so). Optional: void on_start(), called before the first message;
// void on_close(), called last.
// Its mailbox is bounded: MailboxOptions and `static constexpr WhenFull kWhenFull`
// (mailbox_options.hpp) say how.
// A scope owns it: scope.start<Self>(args...) makes it; the scope closes and joins it, also during
// an exception. A caller that owns an actor closes it and joins its scope before its end.
// Thread rule: the loop's thread (or the owner's while the loop does not run) makes, starts and
// destroys it; it is destroyed after its scope was joined. Any thread may call close(). Messages
// that any thread sends before start() wait.
// Cancel rule: close() refuses new messages and handles the accepted ones; a stop of the scope
// drops the accepted ones, too.
//
//   struct Counter : Actor<Counter, Add, Sum> {
//     void handle(Add m) { sum += m.value; }   int handle(Sum) { return sum; }   int sum = 0;
//   };
//   Counter& counter = scope.start<Counter>();   co_await counter.address().send(Add(1));
#pragma once

#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "runtime/address.hpp"
#include "runtime/detail/mailbox/mailbox.hpp"
#include "runtime/exit_reason.hpp"
#include "runtime/reply_to.hpp"
#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/name.hpp"

namespace tandem {

class Children;

namespace detail {
void stop_children(Children& children) noexcept;
/// Returns the failure that a child of an unsupervised parent escalated; null if there is none.
const TaskFailure* escalated(const Children& children) noexcept;

/// True if the actor defines how a message is merged into a waiting one.
template <class Self, class M>
concept Coalesces = requires(M& waiting, M&& newer) {
  { Self::coalesce(waiting, std::move(newer)) } -> std::same_as<bool>;
};
}  // namespace detail

template <class Self, class... Messages>
class Actor {
 public:
  using AddressType = Address<Messages...>;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  /// With `credits_per_sender`, each call returns an address with its own share of the mailbox.
  [[nodiscard]] Address<Messages...> address() const {
    const Address<Messages...> all(*mailbox_);
    return credits_per_sender_ == 0 ? all : all.with_credits(credits_per_sender_);
  }

  /// Starts to take messages, as a task of `scope`, until the actor is closed, stopped or fails.
  /// Call it once.
  void start(Scope& scope) {
    TANDEM_CHECK_FOR(name(), scope_ == nullptr, "an actor is started once");
    TANDEM_CHECK_FOR(name(), scope.loop().on_loop_thread(),
                     "an actor is started on its loop's thread; from others: loop.post(function)");
    scope_ = &scope;
    mailbox_->open(scope.loop(), scope.stop_token());
    scope.stop_token().link(on_stop_);
    root_ = &scope.spawn_task(std::string_view(mailbox_->name()),
                              std::exchange(scope.starts_owned_, false), &Actor::pump, this);
  }

  /// Refuses further messages. The actor handles the accepted ones, and control messages that come
  /// meanwhile; then it ends. Any thread.
  void close() noexcept { mailbox_->close_from_any_thread(); }
  /// Returns the mailbox's fill level and the waiting times of messages. Any thread.
  [[nodiscard]] MailboxMetrics metrics() const noexcept { return mailbox_->metrics(); }
  /// Sets whether depth_max and waiting times are measured from now on.
  void measure(bool on) noexcept { mailbox_->measure(on); }

  [[nodiscard]] const char* name() const noexcept { return mailbox_->name(); }
  [[nodiscard]] bool ended() const noexcept { return mailbox_->ended(); }

 protected:
  explicit Actor(Name name = Name(std::string_view(detail::kTypeName<Self>)),
                 MailboxOptions options = {})
      : mailbox_(
            detail::Mailbox::make_or_inherit(name.c_str(), options, mailbox_rules(), is_child_)),
        credits_per_sender_(options.credits_per_sender),
        on_stop_(*this) {}
  /// `credits`: how many messages may wait.
  Actor(Name name, std::uint32_t credits) : Actor(name, MailboxOptions{.credits = credits}) {}
  ~Actor() {
    if (!is_child_) {
      if (std::uncaught_exceptions() > 0) [[unlikely]] {
        give_up();
      }
      mailbox_->abandon();
    }
  }

  /// The scope that the actor was started in; valid only after start().
  [[nodiscard]] Scope& scope() const noexcept { return *scope_; }
  [[nodiscard]] EventLoop& loop() const noexcept { return scope_->loop(); }

 private:
  friend class Children;
  // Messages handled in a row before others on the loop get their turn.
  static constexpr int kMaxInRow = 128;
  struct OnStop : StopCallback {
    explicit OnStop(Actor& owner) noexcept
        : StopCallback(
              [](StopCallback& self) noexcept { static_cast<OnStop&>(self).actor.on_stop(); }),
          actor(owner) {}
    Actor& actor;
  };
  // A child may be stopped to be restarted, so its mailbox stays open until its parent has decided.
  void on_stop() noexcept { is_child_ ? mailbox_->halt() : mailbox_->stop(); }

  // Called if the actor is destroyed while an exception passes.
  void give_up() noexcept {
    if (root_ != nullptr && !is_child_ && !mailbox_->ended()) {
      mailbox_->give_up(*scope_, *root_);
    }
  }

  Self& self() noexcept { return static_cast<Self&>(*this); }

  Task<> pump() {
    constexpr bool kAnyTask = (handles_by_task<Messages>() || ...);
    std::exception_ptr error;
    const detail::MessageType* handling = nullptr;
    co_await detail::Mailbox::NotePump{*mailbox_};
    try {
      if constexpr (requires(Self& actor) { actor.on_start(); }) {
        static_assert(std::is_void_v<decltype(self().on_start())>, "on_start() returns void");
        self().on_start();
      }
      for (int in_row = 0; !mailbox_->stopped();) {
        detail::Envelope* envelope = mailbox_->take();
        if (envelope == nullptr) {
          if (mailbox_->drained() && mailbox_->seal()) {
            break;
          }
          co_await detail::Mailbox::EnvelopeAwaiter(*mailbox_);
          in_row = 0;
          continue;
        }
        handling = envelope->type;
        const AsyncTraceSpan span(kAnyTask ? envelope->type->name : nullptr);
        Found found = find(*envelope);
        if (found == Found::kNo) [[unlikely]] {
          adopt(*envelope);
          found = find(*envelope);
        }
        if constexpr (kAnyTask) {
          if (found == Found::kTask) {
            co_await begin<Messages...>(*envelope);
          }
        }
        if (++in_row == kMaxInRow) {
          in_row = 0;
          co_await yield();
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    on_stop_.unlink();
    if (children_ != nullptr) {
      detail::stop_children(*children_);
    }
    if (is_child_) {
      scope_->request_stop();  // its tasks end with it
    }
    const char* message = handling != nullptr ? handling->name : nullptr;
    if (!is_child_) {
      end(error, message);
    }
    std::exception_ptr closing;
    if constexpr (requires(Self& actor) { actor.on_close(); }) {
      static_assert(std::is_void_v<decltype(self().on_close())>, "on_close() returns void");
      try {
        self().on_close();
      } catch (...) {
        closing = std::current_exception();
      }
    }
    // Both errors are reported, the cause first.
    if (error != nullptr) {
      scope_->fail(name(), std::move(error), message);
    }
    if (closing != nullptr) {
      scope_->fail(name(), std::move(closing), "on_close");
    }
  }

  enum class Found : unsigned char { kNo, kHandled, kTask };
  // Tries the message types in their order until one is the envelope's, and handles the message
  // unless its handler is a task. (g++ 14 also runs the branch of a `?:` that was not chosen if
  // there is a co_await in it, so a task is begun and awaited apart.)
  [[gnu::always_inline]] Found find(detail::Envelope& envelope) {
    Found found = Found::kNo;
    static_cast<void>(((envelope.type == &detail::kMessageType<Messages> &&
                        (found = handle_now<Messages>(envelope), true)) ||
                       ...));
    return found;
  }
  template <class M>
  [[gnu::always_inline]] Found handle_now(detail::Envelope& envelope) {
    if constexpr (handles_by_task<M>()) {
      return Found::kTask;
    } else {
      dispatch<M>(envelope);
      return Found::kHandled;
    }
  }
  // Calls the handler that is a task, of the type that find() has found.
  template <class M, class... Others>
  Task<> begin(detail::Envelope& envelope) {
    if constexpr (handles_by_task<M>()) {
      if constexpr ((handles_by_task<Others>() || ...)) {
        if (envelope.type != &detail::kMessageType<M>) {
          return begin<Others...>(envelope);
        }
      }
      return dispatch<M>(envelope);
    } else {
      return begin<Others...>(envelope);
    }
  }

  // Accepts a message from a plug-in that has its own MessageType object for the same type.
  void adopt(detail::Envelope& envelope) noexcept {
    const bool known = ((detail::is_same_type(*envelope.type, detail::kMessageType<Messages>)
                             ? (envelope.type = &detail::kMessageType<Messages>, true)
                             : false) ||
                        ...);
    TANDEM_CHECK_FOR(name(), known, "a message came that this actor does not handle");
  }

  // Ends the mailbox, and tells the watchers why the actor ended.
  void end(const std::exception_ptr& error, const char* message) noexcept {
    ExitReason reason{.actor = name()};
    const TaskFailure* below = children_ != nullptr ? detail::escalated(*children_) : nullptr;
    if (error != nullptr && !(scope_->stop_requested() && detail::is_stopped(error))) {
      reason = {ExitReason::Kind::kFailed, name(), name(), message, error};
    } else if (below != nullptr) {
      reason = {ExitReason::Kind::kFailed, name(), below->task, below->message, below->error};
    } else if (mailbox_->stopped()) {
      reason.kind = ExitReason::Kind::kStopped;
    }
    mailbox_->end();
    mailbox_->watchers().tell(reason);
  }

  template <class M>
  static constexpr bool handles_deferred() {
    if constexpr (Request<M>) {
      return requires(Self& actor, M m, ReplyTo<M> reply) {
        actor.handle(std::move(m), std::move(reply));
      };
    } else {
      return false;
    }
  }

  template <class M>
  static constexpr bool handles_by_task() {
    if constexpr (handles_deferred<M>()) {
      return AnyTask<decltype(std::declval<Self&>().handle(std::declval<M>(),
                                                           std::declval<ReplyTo<M>>()))>;
    } else if constexpr (requires(Self& actor, M m) { actor.handle(std::move(m)); }) {
      return AnyTask<decltype(std::declval<Self&>().handle(std::declval<M>()))>;
    } else {
      return false;  // dispatch() says what is wrong
    }
  }

  // Calls the handler; returns its Task<>, or void if it has run already.
  template <class M>
  auto dispatch(detail::Envelope& any) {
    auto& envelope = static_cast<detail::EnvelopeOf<M>&>(any);
    static_assert(
        handles_deferred<M>() || requires(Self& actor, M m) { actor.handle(std::move(m)); },
        "the actor lacks a public handle() for one of its messages");
    const Span span(envelope, *mailbox_);
    if constexpr (handles_deferred<M>()) {
      if constexpr (handles_by_task<M>()) {
        return defer_by_task<M>(&envelope);
      } else {
        defer<M>(envelope);
      }
    } else if constexpr (Request<M>) {
      using Result = decltype(self().handle(std::declval<M>()));
      if constexpr (AnyTask<Result>) {
        return answer_later<M>(&envelope);
      } else {
        static_assert(std::is_same_v<Result, typename M::Reply>, "the handler returns the Reply");
        answer_now<M>(envelope);
      }
    } else {
      using Result = decltype(self().handle(std::declval<M>()));
      static_assert(std::is_void_v<Result> || std::is_same_v<Result, Task<>>,
                    "a handler of a message returns void or Task<>");
      const EnvelopeOwner<M> owner{envelope};
      return self().handle(std::move(envelope.message));
    }
  }

  template <class R>
  void defer(detail::RequestEnvelope<R>& envelope) {
    detail::DeferredAnswer<R> deferred(*mailbox_, envelope);
    try {
      ReplyTo<R> reply(*mailbox_, envelope);
      static_assert(
          std::is_void_v<decltype(self().handle(std::move(envelope.request), std::move(reply)))>,
          "a handler that takes a ReplyTo returns void or Task<>");
      self().handle(std::move(envelope.request), std::move(reply));
    } catch (...) {
      deferred.fail();
      throw;
    }
  }

  template <class R>
  Task<> defer_by_task(detail::RequestEnvelope<R>* envelope) {
    detail::DeferredAnswer<R> deferred(*mailbox_, *envelope);
    try {
      ReplyTo<R> reply(*mailbox_, *envelope);
      co_await self().handle(std::move(envelope->request), std::move(reply));
    } catch (...) {
      deferred.fail();
      throw;
    }
  }

  template <class R>
  void answer_now(detail::RequestEnvelope<R>& envelope) {
    try {
      if constexpr (std::is_void_v<typename R::Reply>) {
        self().handle(std::move(envelope.request));
        envelope.answer();
      } else {
        envelope.answer(self().handle(std::move(envelope.request)));
      }
    } catch (...) {
      envelope.fail(std::current_exception());
      throw;
    }
  }

  template <class R>
  Task<> answer_later(detail::RequestEnvelope<R>* envelope) {
    try {
      if constexpr (std::is_void_v<typename R::Reply>) {
        co_await self().handle(std::move(envelope->request));
        envelope->answer();
      } else {
        envelope->answer(co_await self().handle(std::move(envelope->request)));
      }
    } catch (...) {
      envelope->fail(mailbox_->error_for_asker(std::current_exception()));
      throw;
    }
  }

  template <class M>
  struct EnvelopeOwner {
    detail::EnvelopeOf<M>& envelope;
    ~EnvelopeOwner() { detail::destroy_in_pool(envelope); }
  };

  // Records the handler's run in the trace, and the end of the message's arrow.
  struct Span {
    Span(const detail::Envelope& envelope, const detail::Mailbox& mailbox) noexcept {
      if (trace::enabled()) [[unlikely]] {
        name = envelope.type->name;
        start_ns = trace::detail::now_ns();
        flow_id = envelope.flow_id;
        mailbox_name = mailbox.name();
        depth = static_cast<std::uint32_t>(mailbox.depth());
      }
    }
    ~Span() {
      if (name != nullptr) [[unlikely]] {
        trace::detail::record({.kind = trace::detail::Kind::kHandler,
                               .number = depth,
                               .name = name,
                               .start_ns = start_ns,
                               .duration_ns = trace::detail::now_ns() - start_ns,
                               .id = flow_id,
                               .extra = reinterpret_cast<std::uintptr_t>(mailbox_name)});
      }
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    const char* name = nullptr;
    const char* mailbox_name = nullptr;
    std::int64_t start_ns = 0;
    std::uint64_t flow_id = 0;
    std::uint32_t depth = 0;
  };

  // The policy for a full mailbox that the actor's type chose; kWait by default.
  static constexpr WhenFull when_full() {
    if constexpr (requires { Self::kWhenFull; }) {
      return Self::kWhenFull;
    } else {
      return WhenFull::kWait;
    }
  }
  static constexpr detail::Mailbox::Rules mailbox_rules() {
    constexpr bool kAnyRule = (detail::Coalesces<Self, Messages> || ...);
    static_assert(kAnyRule || when_full() != WhenFull::kCoalesce,
                  "kCoalesce needs `static bool coalesce(M& waiting, M&& newer)` for a message");
    static_assert(!kAnyRule || when_full() == WhenFull::kCoalesce,
                  "coalesce() is used with kWhenFull = WhenFull::kCoalesce only");
    static_assert(!((detail::Coalesces<Self, Messages> && Request<Messages>) || ...),
                  "a request has its own answer: it can't be coalesced");
    static_assert(!((detail::Coalesces<Self, Messages> && ControlMessage<Messages>) || ...),
                  "a control message needs no credit: it is never coalesced");
    return kAnyRule ? detail::Mailbox::Rules{when_full(), &Actor::merge, &Actor::payload}
                    : detail::Mailbox::Rules{when_full()};
  }
  static bool merge(const detail::MessageType& type, detail::Envelope* waiting,
                    void* newer) noexcept {
    bool merged = false;
    (void)((detail::is_same_type(type, detail::kMessageType<Messages>)
                ? (merged = merge_as<Messages>(waiting, newer), true)
                : false) ||
           ...);
    return merged;
  }
  template <class M>
  static bool merge_as([[maybe_unused]] detail::Envelope* waiting, [[maybe_unused]] void* newer) {
    if constexpr (detail::Coalesces<Self, M>) {
      return waiting == nullptr ||
             Self::coalesce(static_cast<detail::MessageEnvelope<M>*>(waiting)->message,
                            std::move(*static_cast<M*>(newer)));
    } else {
      return false;
    }
  }
  static void* payload(detail::Envelope& envelope) noexcept {
    void* message = nullptr;
    (void)((detail::is_same_type(*envelope.type, detail::kMessageType<Messages>)
                ? (message = detail::payload_of<Messages>(envelope), true)
                : false) ||
           ...);
    return message;
  }

  bool is_child_ = false;  // of a Children, which owns the mailbox
  detail::Mailbox* mailbox_;
  std::uint32_t credits_per_sender_;
  Scope* scope_ = nullptr;
  detail::RootTask::promise_type* root_ = nullptr;  // its task, until it has ended
  Children* children_ = nullptr;
  OnStop on_stop_;
};

}  // namespace tandem
