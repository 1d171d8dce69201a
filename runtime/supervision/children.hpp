// runtime/supervision/children.hpp — owns a parent's child actors: makes their state, and makes it
// again when they fail.
//
// A child runs in a scope of its own (its tasks end with it). When it has ended, the parent's
// `OnExit on_child_exit(const ExitReason&)` decides: restart, stop, or escalate (without that
// function: restart what failed). Escalating fails the parent's scope with the child's error; if
// the parent is itself a child, its own parent decides next. More than `limit.most` restarts within
// `limit.within` escalate. An error of a device or a collective, after which nothing can be
// restarted, escalates up to the root; no parent is asked. A child that closed itself, or that was
// stopped, is not restarted. A child that is started with ChildOptions has its own limit, which
// counts only its restarts, and may pause before each: longer each time, until it has run for
// `limit.within`. In a restart the tasks of the child's scope end, its state is destroyed, and a
// new state is made from the same arguments (copied) behind the same mailbox. Senders keep their
// address; the messages that wait in the mailbox survive, and the new state handles them in their
// order. The message that failed is gone (its asker got the error), and the pending replies of the
// old state fail.
// Thread rule: the loop's thread.
// Ownership: it is a member of the parent (or stands beside its scope), and is destroyed after the
// scope was joined. If an exception destroys it while its loop does not run, it stops the children
// and waits for them.
// on_child_exit() is called between two resumptions, maybe while a handler of the parent is
// suspended; it should only decide.
// Cancel rule: children stop with the parent, and when it ends; those of a scope stop with it.
//
//   struct Farm : Actor<Farm, Job> {
//     void on_start() { worker_ = children_.start<Worker>(); }
//     void handle(Job job) { (void)worker_.try_send(std::move(job)); }
//     OnExit on_child_exit(const ExitReason& reason) {
//       return reason.failed() ? OnExit::kRestart : OnExit::kStop;
//     }
//     Children children_{*this, {.limit = {.most = 3, .within = 10s}}};
//     Worker::AddressType worker_;
//   };
#pragma once

#include <cstdint>
#include <exception>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/actor.hpp"

namespace tandem {

/// The ways in which a parent answers the end of a child.
enum class OnExit : unsigned char { kRestart, kStop, kEscalate };

struct RestartLimit {
  int most = 3;
  Duration within = std::chrono::seconds(10);
};

/// How one child is restarted.
struct ChildOptions {
  RestartLimit limit = {};
  /// The pause before the first restart, twice as long before the next, at most `backoff_most`.
  Duration backoff = Duration(0);
  Duration backoff_most = std::chrono::minutes(1);
};

class Children {
 public:
  enum class Strategy : unsigned char {
    kOneForOne,  // the failed one is restarted
    kAllForOne,  // all are restarted, in the order of their starts
  };
  struct Options {
    RestartLimit limit = {};
    Strategy strategy = Strategy::kOneForOne;
  };

  /// Children of an actor.
  template <class Self, class... Messages>
  explicit Children(Actor<Self, Messages...>& parent) : Children(parent, Options()) {}
  template <class Self, class... Messages>
  Children(Actor<Self, Messages...>& parent, Options options);
  /// Without a parent: failed children are restarted; an escalation fails `scope`.
  explicit Children(Scope& scope) : Children(scope, Options()) {}
  Children(Scope& scope, Options options);
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Makes A(args...) and starts it. Throws what the constructor throws.
  template <class A, class... Args>
  typename A::AddressType start(Args... args) {
    return start_child<A>(nullptr, std::move(args)...);
  }
  template <class A, class... Args>
  typename A::AddressType start_with(const ChildOptions& options, Args... args) {
    return start_child<A>(&options, std::move(args)...);
  }

  /// Asks all children to stop; they end as tasks of the parent's scope.
  void request_stop() noexcept;
  [[nodiscard]] std::size_t running() const noexcept { return running_; }
  /// The number of restarts so far.
  [[nodiscard]] std::uint64_t restarts() const noexcept { return restarts_; }

 private:
  friend void detail::stop_children(Children& children) noexcept;
  friend const TaskFailure* detail::escalated(const Children& children) noexcept;

  struct Child {
    virtual ~Child();
    virtual void make() = 0;   // the state, behind `mailbox` if there is one
    virtual void start() = 0;  // in `scope`
    virtual void destroy_state() noexcept = 0;
    std::list<std::unique_ptr<Child>>::iterator place;  // in the list of its parent
    [[nodiscard]] ExitReason exit_reason() const;
    void open_scope(EventLoop& loop, StopToken stop);

    const char* name = nullptr;
    detail::Mailbox* mailbox = nullptr;  // owned, as an actor owns its own
    std::optional<Scope> scope;
    std::exception_ptr not_made;  // what the constructor threw at a restart
    bool with_another = false;  // all for one: ends because a sibling failed, and is remade with it
    std::uint64_t times_made = 0;
    bool ended = false;
    Event remade;
    std::optional<ChildOptions> options;  // of its own
    std::vector<TimePoint> recent;        // its restarts within its limit's time
    Duration pause = Duration(0);         // before its last restart
  };
  template <class A, class... Args>
  struct ChildOf;
  using Ask = OnExit (*)(void* parent, const ExitReason& reason);

  template <class A, class... Args>
  typename A::AddressType start_child(const ChildOptions* options, Args... args);
  Scope& owner();
  Task<> look_after(Child* child);
  OnExit decide(Child& child, ExitReason& reason);
  bool may_restart(Child& child, ExitReason& reason);
  Task<> pause(Child* child);
  Task<> restart(Child* child);
  void remake(Child& child);
  void end(Child& child, const ExitReason& reason) noexcept;
  void escalate(const ExitReason& reason);
  void end_while_unwinding() noexcept;

  Options options_;
  int exceptions_ = std::uncaught_exceptions();  // that passed when it was made
  void* parent_ = nullptr;
  Scope* (*scope_of_parent_)(void* parent) = nullptr;
  void (*give_up_parent_)(void* parent) noexcept = nullptr;
  bool (*parent_is_owned_)(void* parent) noexcept = nullptr;  // by its scope
  Ask ask_ = nullptr;
  Scope* scope_ = nullptr;
  // Stops all children; there while some run, so that it never outlives the parent's scope.
  std::optional<StopSource> stop_;
  std::list<std::unique_ptr<Child>> children_;  // that have not ended, in the order of their starts
  std::size_t running_ = 0;
  Event* none_runs_ = nullptr;  // wanted by end_while_unwinding()
  std::uint64_t restarts_ = 0;
  Event none_restarts_{true};      // of kAllForOne
  std::vector<TimePoint> recent_;  // restarts within the limit's time
  std::optional<TaskFailure> escalated_;
};

template <class A, class... Args>
struct Children::ChildOf final : Child {
  explicit ChildOf(Args... given) : args(std::move(given)...) {}
  ~ChildOf() override { destroy_state(); }
  void make() override {
    {
      const detail::Mailbox::Inheritance inheritance(mailbox);
      actor = std::apply([](const Args&... each) { return std::make_unique<A>(each...); }, args);
    }
    TANDEM_CHECK(mailbox == nullptr || actor->mailbox_ == mailbox,
                 "a child's Actor base is made before everything else in it");
    mailbox = actor->mailbox_;
    name = mailbox->name();
    actor->is_child_ = true;
  }
  void start() override { actor->start(*scope); }
  void destroy_state() noexcept override { actor.reset(); }
  std::tuple<Args...> args;
  std::unique_ptr<A> actor;
};

template <class Self, class... Messages>
Children::Children(Actor<Self, Messages...>& parent, Options options)
    : options_(options), parent_(&parent) {
  parent.children_ = this;
  scope_of_parent_ = [](void* actor) {
    return static_cast<Actor<Self, Messages...>*>(actor)->scope_;
  };
  parent_is_owned_ = [](void* actor) noexcept {
    const auto& self = *static_cast<Actor<Self, Messages...>*>(actor);
    return !self.ended() && self.root_ != nullptr && self.root_->is_owned_actor;
  };
  give_up_parent_ = [](void* actor) noexcept {
    static_cast<Actor<Self, Messages...>*>(actor)->give_up();
  };
  ask_ = [](void* actor, const ExitReason& reason) {
    auto& self = static_cast<Self&>(*static_cast<Actor<Self, Messages...>*>(actor));
    if constexpr (requires { self.on_child_exit(reason); }) {
      return self.on_child_exit(reason);
    } else {
      return reason.failed() ? OnExit::kRestart : OnExit::kStop;
    }
  };
}

template <class A, class... Args>
typename A::AddressType Children::start_child(const ChildOptions* options, Args... args) {
  Scope& scope = owner();
  scope.loop().check_here();
  children_.push_back(std::make_unique<ChildOf<A, Args...>>(std::move(args)...));
  auto& child = static_cast<ChildOf<A, Args...>&>(*children_.back());
  child.place = std::prev(children_.end());
  if (options != nullptr) {
    child.options = *options;
  }
  try {
    child.make();
  } catch (...) {
    children_.pop_back();
    throw;
  }
  child.open_scope(scope.loop(), stop_->token());
  child.start();
  ++running_;
  // This task ends with the parent. A scope that owns the parent does not wait for it before it
  // closes the parent.
  (void)scope.spawn_task(std::string_view(child.name),
                         parent_is_owned_ && parent_is_owned_(parent_), &Children::look_after, this,
                         static_cast<Child*>(&child));
  return child.actor->address();
}

}  // namespace tandem
