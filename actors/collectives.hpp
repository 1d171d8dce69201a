// actors/collectives.hpp — the sole issuer of collective operations of a rank.
//
// Two sequences, gathers and reductions (these with the all-reduce of the norm), independent of each other. Each is
// issued strictly by order number 0, 1, 2, ...: an operation that comes early is held back until its turn, one at a
// time is under way. The numbers come from the plan, so all ranks issue the same operations in the same order whatever
// the order of arrival. A visit that needs no gather (its unit is resident) gives its number up with SkipGather.
//
// States of a sequence: idle -> issuing -> idle ...; -> failed, for good: after an error of the backend every
// operation held or asked for later fails with it, in both sequences, and so does the scope.
// Buffers: those of an operation are lent from the request until its reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <variant>

#include "actors/collective_backend.hpp"
#include "actors/ordered_inbox.hpp"
#include "runtime/actor.hpp"

namespace tandem {

struct AllGather {
  using Reply = void;
  std::uint64_t order = 0;
  GatherArguments arguments;
};

struct SkipGather {
  std::uint64_t order = 0;
};

struct ReduceScatterAdd {
  using Reply = GradientNorm;  // with want_norm: of the resulting accumulator of this rank
  std::uint64_t order = 0;
  ReduceArguments arguments;
};

/// The merge of all ranks' norms. Takes a number of the reductions' sequence.
struct AllReduceNorm {
  using Reply = GradientNorm;
  std::uint64_t order = 0;
  GradientNorm local;
};

using CollectivesAddress = Address<AllGather, SkipGather, ReduceScatterAdd, AllReduceNorm>;

class Collectives
    : public Actor<Collectives, AllGather, SkipGather, ReduceScatterAdd, AllReduceNorm> {
 public:
  struct Options {
    CollectiveBackend* backend = nullptr;  // outlives the actor
    std::size_t max_ahead = 1024;          // operations held back, at most
  };

  struct SequenceCounters {
    std::uint64_t operations = 0;
    std::uint64_t skipped = 0;
    std::uint64_t bytes = 0;   // of whole blocks
    double busy_s = 0;         // an operation was under way
    std::size_t held_max = 0;  // operations that had come and not been issued, at most
  };

  struct Counters {
    SequenceCounters gathers;
    SequenceCounters reductions;
  };

  explicit Collectives(Options options);

  void handle(AllGather request, ReplyTo<AllGather> reply);
  void handle(SkipGather skip);
  void handle(ReduceScatterAdd request, ReplyTo<ReduceScatterAdd> reply);
  void handle(AllReduceNorm request, ReplyTo<AllReduceNorm> reply);

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  struct HeldGather {
    AllGather request;
    ReplyTo<AllGather> reply;
  };
  struct HeldReduction {
    ReduceScatterAdd request;
    ReplyTo<ReduceScatterAdd> reply;
  };
  struct HeldNorm {
    AllReduceNorm request;
    ReplyTo<AllReduceNorm> reply;
  };
  using Gather = std::variant<SkipGather, HeldGather>;
  using Reduction = std::variant<HeldReduction, HeldNorm>;

  void start_gathers();
  void start_reductions();
  Task<> issue_gathers();
  Task<> issue_reductions();
  Task<> issue(HeldReduction& held);
  Task<> issue(HeldNorm& held);
  void fail_all(std::exception_ptr error);

  Options options_;
  OrderedInbox<Gather> gathers_;
  OrderedInbox<Reduction> reductions_;
  bool issuing_gathers_ = false;
  bool issuing_reductions_ = false;
  std::exception_ptr failed_;
  Counters counters_;
};

}  // namespace tandem
