// actors/collectives/collectives.hpp — the sole issuer of collective operations of a rank.
//
// Two sequences, independent of each other: gathers (with broadcasts and all-to-alls) and
// reductions (with all-reduces and exchanges; a barrier is an exchange of nothing). Each is issued
// strictly by order number 0, 1, 2, ...: an operation that comes early is held back until its turn,
// one at a time is under way. The numbers come from the plan, so all ranks issue the same
// operations in the same order whatever the order of arrival. A visit that needs no gather (its
// unit is resident) gives its number up with SkipGather.
//
// States of a sequence: idle -> issuing -> idle ...; -> failed, permanently: after an error of the
// backend every operation held or asked for later fails with it, in both sequences, and so does the
// scope. Buffers: those of an operation are lent from the request until its reply.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <variant>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "actors/collectives/ordered_inbox.hpp"
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

/// The merge of all ranks' norms; exact, so the same bits on all of them. Takes a number of the
/// reductions' sequence.
struct AllReduceNorm {
  using Reply = GradientNorm;
  std::uint64_t order = 0;
  GradientNorm local;
};

/// A number of the reductions' sequence.
struct AllReduceAdd {
  using Reply = GradientNorm;  // with want_norm: of the whole result
  std::uint64_t order = 0;
  ReduceArguments arguments;
};

/// A number of the reductions' sequence.
struct Exchange {
  using Reply = void;
  std::uint64_t order = 0;
  ExchangeArguments arguments;
};

/// A number of the gathers' sequence.
struct Broadcast {
  using Reply = void;
  std::uint64_t order = 0;
  BroadcastArguments arguments;
};

/// A number of the gathers' sequence.
struct AllToAll {
  using Reply = void;
  std::uint64_t order = 0;
  AllToAllArguments arguments;
};

using CollectivesAddress = Address<AllGather, SkipGather, ReduceScatterAdd, AllReduceNorm,
                                   AllReduceAdd, Exchange, Broadcast, AllToAll>;

class Collectives : public Actor<Collectives, AllGather, SkipGather, ReduceScatterAdd,
                                 AllReduceNorm, AllReduceAdd, Exchange, Broadcast, AllToAll> {
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
  void handle(Broadcast request, ReplyTo<Broadcast> reply);
  void handle(AllToAll request, ReplyTo<AllToAll> reply);
  void handle(ReduceScatterAdd request, ReplyTo<ReduceScatterAdd> reply);
  void handle(AllReduceNorm request, ReplyTo<AllReduceNorm> reply);
  void handle(AllReduceAdd request, ReplyTo<AllReduceAdd> reply);
  void handle(Exchange request, ReplyTo<Exchange> reply);

  /// Loop thread.
  [[nodiscard]] const Counters& counters() const noexcept { return counters_; }

 private:
  template <class Request>
  struct Held {
    Request request;
    ReplyTo<Request> reply;
  };
  using Gather = std::variant<SkipGather, Held<AllGather>, Held<Broadcast>, Held<AllToAll>>;
  using Reduction =
      std::variant<Held<ReduceScatterAdd>, Held<AllReduceNorm>, Held<AllReduceAdd>, Held<Exchange>>;
  template <class Request>
  void take_gather(Request request, ReplyTo<Request> reply);
  template <class Request>
  void take_reduction(Request request, ReplyTo<Request> reply);
  void start_gathers();
  void start_reductions();
  Task<> issue_gathers();
  Task<> issue_reductions();
  template <class Request>
  Task<> issue(Held<Request>* held, SequenceCounters* counters);
  Task<> carry_out(const AllGather& request);
  Task<> carry_out(const Broadcast& request);
  Task<> carry_out(const AllToAll& request);
  Task<> carry_out(const Exchange& request);
  Task<GradientNorm> carry_out(const ReduceScatterAdd& request);
  Task<GradientNorm> carry_out(const AllReduceAdd& request);
  Task<GradientNorm> carry_out(const AllReduceNorm& request);
  Task<GradientNorm> all_reduce_norm(GradientNorm local);
  template <class Request>
  void count(SequenceCounters* counters, const Request& request, TimePoint start) const;
  void fail_all(std::exception_ptr error);

  Options options_;
  OrderedInbox<Gather> gathers_;
  OrderedInbox<Reduction> reductions_;
  bool issuing_gathers_ = false;
  bool issuing_reductions_ = false;
  NormLimbs own_norm_;            // of the all-reduce of the norm under way
  std::vector<NormLimbs> norms_;  // the same, of every rank
  std::exception_ptr failed_;
  Counters counters_;
};

}  // namespace tandem
