// runtime/message.hpp — what travels to a mailbox: a message or a request, in a block of the sender's message pool.
//
// A request type says what it is answered with (`using Reply = X;`). Its block also carries the answer back when the asker
// lives on another loop. Internal, apart from the concept Request.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include "runtime/ask_slot.hpp"
#include "runtime/loop_link.hpp"
#include "runtime/message_pool.hpp"
#include "runtime/op.hpp"
#include "runtime/util/outcome.hpp"
#include "runtime/util/type_name.hpp"

namespace tandem {

template <class M>
concept Request = requires { typename M::Reply; };

namespace detail {

class Mailbox;

/// One per message type; its address tells the types apart.
struct MessageType {
  const char* name;
};
template <class M>
inline constexpr MessageType kMessageType{kTypeName<M>};

/// A sender that waits until its mail was accepted.
struct SendWaiter {
  ResumeOp resume;
  EventLoop* loop = nullptr;
  bool bounced = false;
};

struct Mail : Op {
  using Bounce = void (*)(Mail&, const char* actor) noexcept;
  Mail(const MessageType& message_type, Bounce function) noexcept
      : type(&message_type), bounce(function) {}

  const MessageType* type;
  Bounce bounce;              // ends and frees the mail; an asker learns that the actor is closed
  Mailbox* target = nullptr;  // on the way between threads
  SendWaiter* waiter = nullptr;
  const char* sender = nullptr;  // noted where it is known for nothing, and for a tap
  bool withdrawn = false;        // the sender gave up waiting in line
  std::uint64_t flow_id = 0;     // in the trace; 0: not traced
};

template <class T, class... Args>
T* make_in_pool(Args&&... args) {
  static_assert(alignof(T) <= 16, "messages are aligned to 16 bytes at most");
  void* block = MessagePool::allocate(sizeof(T));
  try {
    return std::construct_at(static_cast<T*>(block), std::forward<Args>(args)...);
  } catch (...) {
    MessagePool::deallocate(block);
    throw;
  }
}

template <class T>
void destroy_in_pool(T& object) noexcept {
  std::destroy_at(&object);
  MessagePool::deallocate(&object);
}

template <class M>
struct MessageMail : Mail {
  static_assert(std::is_nothrow_move_constructible_v<M>, "a message moves without throwing");
  template <class Arg>
  explicit MessageMail(Arg&& argument)
      : Mail(kMessageType<M>,
             [](Mail& mail, const char*) noexcept {
               destroy_in_pool(static_cast<MessageMail&>(mail));
             }),
        message(std::forward<Arg>(argument)) {}
  M message;
};

/// An answer that a handler promised (a ReplyTo exists): the mailbox fails it when the actor ends first.
struct OwedAnswer {
  using FailClosed = void (*)(OwedAnswer&, const char* actor) noexcept;
  explicit OwedAnswer(FailClosed function) noexcept : fail_closed(function) {}
  FailClosed fail_closed;
  OwedAnswer* next_owed = nullptr;
  OwedAnswer** link_to_this = nullptr;
  bool failed = false;
};

std::exception_ptr actor_closed_error(const char* actor) noexcept;
std::exception_ptr reply_dropped_error(const char* request) noexcept;

template <class R>
struct AskMail : Mail, OwedAnswer {
  using Reply = typename R::Reply;
  static_assert(std::is_nothrow_move_constructible_v<R>, "a request moves without throwing");

  template <class Arg>
  explicit AskMail(Arg&& argument)
      : Mail(kMessageType<R>,
             [](Mail& mail, const char* actor) noexcept {
               static_cast<AskMail&>(mail).fail(actor_closed_error(actor));
             }),
        OwedAnswer([](OwedAnswer& owed, const char* actor) noexcept {
          auto& self = static_cast<AskMail&>(owed);
          self.failed = true;
          // The ReplyTo still holds this block, so the failure travels in one of its own.
          try {
            auto* carrier = make_in_pool<AskMail>(static_cast<R*>(nullptr));
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
  ~AskMail() {
    if (has_request) {
      std::destroy_at(&request);
    }
    if (link != nullptr) {
      link->release();
    }
  }

  /// Who gets the answer; `far`: the answer will come from another loop, so this one may be gone by then.
  void set_asker(EventLoop& loop, AskKey ask_key, bool far) noexcept {
    asker = &loop;
    key = ask_key;
    if (far) {
      link = &loop.link();
      link->add_reference();
    }
  }

  /// Each of these ends and frees the mail.
  template <class... Args>
  void answer(Args&&... value) {
    outcome.set_value(std::forward<Args>(value)...);
    send_outcome();
  }
  void fail(std::exception_ptr error) noexcept {
    outcome.set_error(std::move(error));
    send_outcome();
  }
  void drop() noexcept { destroy_in_pool(*this); }

  EventLoop* asker = nullptr;  // null: it was sent, not asked
  LoopLink* link = nullptr;    // to the asker, if it is another loop
  AskKey key;
  Outcome<Reply> outcome;
  bool has_request;
  union {
    R request;
  };

 private:
  void send_outcome() noexcept {
    if (asker == nullptr) {
      drop();
    } else if (link == nullptr) {
      answer_near();
    } else {
      this->run = &AskMail::deliver;
      if (!link->post(*this)) {
        drop();
      }
    }
  }
  // The asker's loop is the actor's: it lives. This thread may not be running it (an actor that ends between two runs).
  void answer_near() noexcept {
    if (asker == EventLoop::current_or_null()) {
      deliver(*this);
    } else {
      this->run = &AskMail::deliver;
      asker->post_from_any_thread(*this);
    }
  }
  static void deliver(Op& op) noexcept {
    auto& self = static_cast<AskMail&>(op);
    if (AskSlotBase* slot = self.asker->asks().take(self.key)) {
      static_cast<AskSlot<Reply>*>(slot)->outcome.assign(std::move(self.outcome));
      slot->finish(AskSlotBase::End::kAnswered);
    }
    self.drop();
  }
};

}  // namespace detail
}  // namespace tandem
