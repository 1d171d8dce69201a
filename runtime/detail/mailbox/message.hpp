// runtime/detail/mailbox/message.hpp — a message or a request on its way to a mailbox, in memory of
// the sender's message pool.
//
// A request type names the type of its answer (`using Reply = X;`). Its block also carries the
// answer back when the asker lives on another loop. Internal, apart from the concepts Request and
// ControlMessage.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/detail/loop_link.hpp"
#include "runtime/detail/mailbox/ask_slot.hpp"
#include "runtime/detail/mailbox/message_pool.hpp"
#include "runtime/detail/op.hpp"
#include "runtime/util/outcome.hpp"
#include "runtime/util/type_name.hpp"

namespace tandem {

template <class M>
concept Request = requires { typename M::Reply; };

/// A message that needs no credit and overtakes the others: `static constexpr bool kControl =
/// true;`.
template <class M>
concept ControlMessage = requires { requires M::kControl; };

namespace detail {

/// True if M is one of these messages.
template <class M, class... Messages>
concept OneOf = (std::same_as<M, Messages> || ...);

class Mailbox;
class SenderShare;

/// One per message type; its address tells the types apart.
struct MessageType {
  const char* name;
  bool control;
};
template <class M>
[[gnu::visibility("default")]] inline constexpr MessageType kMessageType{kTypeName<M>,
                                                                         ControlMessage<M>};
/// Compares the names as well: a plug-in that hides its symbols has its own object for the same
/// type. (Two messages of one actor never have one name.)
[[nodiscard]] inline bool is_same_type(const MessageType& one, const MessageType& other) noexcept {
  return &one == &other || std::strcmp(one.name, other.name) == 0;
}

/// The state of an envelope that waits for a credit in the wait queue; lives in its sender's
/// awaiter.
struct WaitTicket {
  enum class State : unsigned char { kNone, kWaiting, kAccepted, kReturned, kWithdrawn };
  State state = State::kNone;  // belongs to the mailbox's loop once the envelope is sent
  // posted to the sender's loop when the envelope leaves the wait queue; null: only the state tells
  Op* told = nullptr;
  EventLoop* loop = nullptr;  // the sender's
};

/// Why an envelope comes back.
enum class Undelivered : unsigned char { kClosed, kDropped, kWithdrawn };

struct Envelope : Op {
  using ReturnUndelivered = void (*)(Envelope&, const char* actor, Undelivered why) noexcept;
  Envelope(const MessageType& message_type, ReturnUndelivered function) noexcept
      : type(&message_type), return_undelivered(function), control(message_type.control) {}

  const MessageType* type;
  ReturnUndelivered return_undelivered;  // ends and frees the envelope; an asker learns why
  union {
    Mailbox* target = nullptr;  // on the way between threads
    Envelope* previous;         // in the wait queue
  };
  union {
    WaitTicket* ticket = nullptr;  // while it waits in the wait queue, if its sender wants to know
    Envelope* next_of_share;       // in the queue of a mailbox that drops the oldest
  };
  SenderShare* share = nullptr;  // the envelope holds a credit and a reference of it
  std::int64_t sent_ns = 0;      // by the loop's clock; 0: not measured
  const char* sender = nullptr;  // noted where that costs nothing, and for a tap
  std::uint64_t flow_id = 0;     // in the trace; 0: not traced
  bool control;                  // as its type says
  bool waits_for_share = false;  // in the wait queue: it waits for a credit of its share
  bool noted = false;            // share or sent_ns is set: one test when it is taken
};

/// The pool's blocks are aligned to 16 bytes; a type that needs more comes from the heap.
template <class T>
inline constexpr bool kPooled = alignof(T) <= 16;

template <class T, class... Args>
T* make_in_pool(Args&&... args) {
  if constexpr (!kPooled<T>) {
    return new T(std::forward<Args>(args)...);
  } else {
    void* block = MessagePool::allocate(sizeof(T));
    try {
      return std::construct_at(static_cast<T*>(block), std::forward<Args>(args)...);
    } catch (...) {
      MessagePool::deallocate(block, sizeof(T));
      throw;
    }
  }
}

template <class T>
void destroy_in_pool(T& object) noexcept {
  if constexpr (!kPooled<T>) {
    delete &object;
  } else {
    std::destroy_at(&object);
    MessagePool::deallocate(&object, sizeof(T));
  }
}

template <class M>
struct MessageEnvelope : Envelope {
  static_assert(std::is_nothrow_move_constructible_v<M>, "a message moves without throwing");
  template <class Arg>
  explicit MessageEnvelope(Arg&& argument)
      : Envelope(kMessageType<M>,
                 [](Envelope& envelope, const char*, Undelivered) noexcept {
                   destroy_in_pool(static_cast<MessageEnvelope&>(envelope));
                 }),
        message(std::forward<Arg>(argument)) {}
  M message;
};

/// A running handler that was given a ReplyTo. If it drops the ReplyTo and then throws, the asker
/// gets the handler's exception.
struct DeferredCall {
  bool dropped = false;
  struct PendingReply* reply = nullptr;  // null: answered, or refused
};

/// An answer that a handler promised (a ReplyTo exists). The mailbox fails it if the actor ends
/// before it is given.
struct PendingReply {
  using FailClosed = void (*)(PendingReply&, const char* actor) noexcept;
  explicit PendingReply(FailClosed function) noexcept : fail_closed(function) {}
  FailClosed fail_closed;
  DeferredCall* call = nullptr;  // the handler that got the ReplyTo, while it runs
  PendingReply* next_pending_reply = nullptr;
  PendingReply** link_to_this = nullptr;
  bool failed = false;
};

std::exception_ptr actor_closed_error(const char* actor) noexcept;
std::exception_ptr message_dropped_error(const char* request, const char* actor) noexcept;
std::exception_ptr reply_dropped_error(const char* request) noexcept;

template <class R>
struct RequestEnvelope : Envelope, PendingReply {
  using Reply = typename R::Reply;
  static_assert(std::is_nothrow_move_constructible_v<R>, "a request moves without throwing");

  template <class Arg>
  explicit RequestEnvelope(Arg&& argument)
      : Envelope(kMessageType<R>,
                 [](Envelope& envelope, const char* actor, Undelivered why) noexcept {
                   static_cast<RequestEnvelope&>(envelope).come_back(actor, why);
                 }),
        PendingReply([](PendingReply& pending, const char* actor) noexcept {
          auto& self = static_cast<RequestEnvelope&>(pending);
          self.failed = true;
          // The ReplyTo still holds this block, so the failure travels in one of its own.
          try {
            auto* carrier = make_in_pool<RequestEnvelope>(static_cast<R*>(nullptr));
            carrier->asker = self.asker;
            carrier->link = std::exchange(self.link, nullptr);
            carrier->key = self.key;
            carrier->fail(actor_closed_error(actor));
          } catch (...) {
            TANDEM_CHECK(false, "out of memory while an actor ends");
          }
        }),
        has_request(!std::is_same_v<std::remove_cvref_t<Arg>, R*>) {
    if constexpr (!std::is_same_v<std::remove_cvref_t<Arg>, R*>) {
      std::construct_at(&request, std::forward<Arg>(argument));
    }
  }
  ~RequestEnvelope() {
    if (has_request) {
      std::destroy_at(&request);
    }
    if (link != nullptr) {
      link->release();
    }
  }

  /// Sets the loop that gets the answer. With `far` the answer comes from another loop, so the
  /// asker's loop may be gone by then.
  void set_asker(EventLoop& loop, AskKey ask_key, bool far) noexcept {
    asker = &loop;
    key = ask_key;
    if (far) {
      link = &loop.link();
      link->add_reference();
    }
  }

  /// Stores the answer; send_outcome() must follow. If making the answer throws, the asker gets
  /// that exception, too.
  template <class... Args>
  void set_outcome(Args&&... value) {
    try {
      outcome.set_value(std::forward<Args>(value)...);
    } catch (...) {
      outcome.set_error(std::current_exception());
      throw;
    }
  }
  /// answer(), fail(), send_outcome(), drop() and come_back() each end and free the envelope.
  template <class... Args>
  void answer(Args&&... value) {
    outcome.set_value(std::forward<Args>(value)...);
    send_outcome();
  }
  void fail(std::exception_ptr error) noexcept {
    outcome.set_error(std::move(error));
    send_outcome();
  }
  void send_outcome() noexcept {
    if (asker == nullptr) {
      drop();
    } else if (link == nullptr) {
      answer_near();
    } else {
      this->run = &RequestEnvelope::deliver;
      if (!link->post(*this)) {
        drop();
      }
    }
  }
  void drop() noexcept { destroy_in_pool(*this); }
  void come_back(const char* actor, Undelivered why) noexcept {
    if (asker == nullptr || why == Undelivered::kWithdrawn) {
      drop();
    } else if (why == Undelivered::kDropped) {
      fail(message_dropped_error(kTypeName<R>, actor));
    } else {
      fail(actor_closed_error(actor));
    }
  }

  EventLoop* asker = nullptr;  // null: it was sent, not asked
  LoopLink* link = nullptr;    // to the asker, if it is another loop
  AskKey key;
  Outcome<Reply> outcome;
  bool has_request;
  union {
    R request;
  };

 private:
  // The asker's loop is the actor's own, so it lives. It may not run on this thread (if the actor
  // ends between two runs).
  void answer_near() noexcept {
    if (asker == EventLoop::current_or_null()) {
      deliver(*this);
    } else {
      this->run = &RequestEnvelope::deliver;
      asker->post_from_any_thread(*this);
    }
  }
  static void deliver(Op& op) noexcept {
    auto& self = static_cast<RequestEnvelope&>(op);
    if (AskSlotBase* slot = self.asker->asks().take(self.key)) {
      auto& outcome = static_cast<AskSlot<Reply>*>(slot)->outcome;
      try {
        outcome.assign(std::move(self.outcome));
      } catch (...) {  // a reply whose move throws
        outcome.set_error(std::current_exception());
      }
      slot->finish(AskSlotBase::End::kAnswered);
    }
    self.drop();
  }
};

template <class M>
struct EnvelopeFor {
  using Type = MessageEnvelope<M>;
};
template <Request R>
struct EnvelopeFor<R> {
  using Type = RequestEnvelope<R>;
};
template <class M>
using EnvelopeOf = typename EnvelopeFor<M>::Type;

/// Returns the address of the message in an envelope of its type.
template <class M>
void* payload_of(Envelope& envelope) noexcept {
  if constexpr (Request<M>) {
    return &static_cast<EnvelopeOf<M>&>(envelope).request;
  } else {
    return &static_cast<EnvelopeOf<M>&>(envelope).message;
  }
}

}  // namespace detail
}  // namespace tandem
