// runtime/supervision/shutdown.hpp — ends a whole actor system in named phases, each with a
// deadline, instead of hanging.
//
//   intake   the mailboxes of the root scope's actors, and of those in scopes below it, close
//            (control messages still pass), and what they accepted is handled
//   stop     the root scope is asked to stop; its tasks end
//   ...      your own, in the order of then(): abort communicators, give up streams, join pools
//   rest     what your phases set free ends
// A phase that is not done in time is left behind and the next one begins, because a later phase's
// abort sets a stuck task free. If tasks still run at the end, run() throws an Error with their
// await chains; the process must then end itself (the frames cannot be destroyed, because the
// operations that they await are in flight).
// Thread rule: the loop's thread; run() once, from a task outside of `root`.
// Ownership: it must outlive the tasks of its phases. The phases look every kLook, so the loop's
// clock must move.
//
//   Shutdown shutdown(root, {.handle = 1s, .drain = 5s});
//   shutdown.then("abort comms", 2s, &abort_comms, &comms);
//   const Shutdown::Report report = co_await shutdown.run();   // report.text(): one line per phase
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/scope.hpp"
#include "runtime/sleep.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

class Shutdown {
 public:
  struct Options {
    Duration handle = std::chrono::seconds(1);  // intake: to handle the accepted messages
    Duration drain = std::chrono::seconds(5);   // stop
    Duration rest = std::chrono::seconds(1);
  };
  struct Phase {
    const char* name;
    Duration limit;
    Duration took;
    bool done;         // in time
    std::string left;  // what still ran at its deadline, with await chains
  };
  struct Report {
    std::vector<Phase> phases;
    bool clean = true;                  // nothing runs any more
    std::vector<TaskFailure> failures;  // of your phases
    /// One line per phase, and what was left behind.
    [[nodiscard]] std::string text() const;
  };
  /// Thrown if something still runs; the text says what it waits for.
  class Incomplete : public Error {
   public:
    explicit Incomplete(Report report);
    [[nodiscard]] const Report& report() const noexcept { return report_; }

   private:
    Report report_;
  };

  explicit Shutdown(Scope& root) : Shutdown(root, Options()) {}
  Shutdown(Scope& root, Options options) : root_(root), options_(options) {}
  Shutdown(const Shutdown&) = delete;
  Shutdown& operator=(const Shutdown&) = delete;

  /// Adds a phase of your own: factory(args...), a Task. Its failure is in the report, and does not
  /// end the shutdown.
  template <class Factory, class... Args>
    requires TaskFactory<Factory, Args...>
  void then(Name name, Duration limit, Factory factory, Args... args) {
    hooks_.push_back(std::make_unique<Hook>(root_.loop(), name, limit));
    hooks_.back()->begin = [factory, ... given = std::move(args), name](Scope& scope) {
      scope.spawn(name, factory, given...);
    };
  }

  /// Runs all phases; throws Incomplete if something still runs.
  Task<Report> run();

 private:
  static constexpr Duration kLook = std::chrono::milliseconds(1);

  struct Hook {
    Hook(EventLoop& loop, Name name_in, Duration limit_in)
        : name(name_in.c_str()), limit(limit_in), scope(loop, name_in) {}
    const char* name;
    Duration limit;
    Scope scope;
    std::function<void(Scope&)> begin;
  };
  using Left = std::function<std::string()>;

  Task<> phase(Report* report, const char* name, Duration limit, Left left);
  std::string mailboxes_left() const;
  std::string tasks_left() const;

  Scope& root_;
  Options options_;
  std::vector<std::unique_ptr<Hook>> hooks_;
};

}  // namespace tandem
