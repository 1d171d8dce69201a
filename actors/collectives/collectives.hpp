// actors/collectives/collectives.hpp — issues all collective operations of a rank.
//
// Operations form two sequences, which are independent of each other: gathers (with all-to-alls)
// and reductions (with all-reduces and exchanges; a barrier is an exchange of nothing). A sequence
// issues its operations strictly by order number 0, 1, 2, ..., one at a time; a request that
// arrives early waits for its turn. The numbers come from the plan, so all ranks issue the same
// operations in the same order, whatever the order of arrival. A visit that needs no gather (its
// unit is resident) releases its number with SkipGather.
//
// States of a sequence: idle -> issuing -> idle ...; -> failed, permanently: after an error of the
// back end every waiting or later operation of both sequences fails with that error, and so does
// the scope.
// Buffers: the buffers of an operation are lent until it ends. It ends at its reply, or later if
// the actor is stopped; so they must outlive the actor. An Exchange has buffers of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "actors/collectives/collective_backend.hpp"
#include "actors/collectives/comms_log.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "actors/collectives/ordered_inbox.hpp"
#include "runtime/actor.hpp"
#include "runtime/flight.hpp"

namespace tandem {

// A request type describes its operation: the reply, the back end's function that executes it, its
// number in its sequence (Collectives::Gathers and Reductions list the requests of each), its name
// in the flight recorder, its unit if it has one, and bytes(), the size of the whole blocks.

struct AllGather {
  using Reply = void;
  static constexpr auto kCarriedOutBy = &CollectiveBackend::all_gather;
  static constexpr auto kWhat = flight::Kind::kAllGather;
  std::uint64_t order = 0;
  GatherArguments arguments;
  std::uint32_t unit = flight::kNoUnit;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t world) const noexcept {
    return arguments.shard_bytes * (arguments.is_replicated ? 1 : world);
  }
};

/// Releases a number of the gathers' sequence without an operation.
struct SkipGather {
  std::uint64_t order = 0;
};

struct ReduceScatterAdd {
  using Reply = GradientNorm;  // with want_norm: of the resulting accumulator of this rank
  static constexpr auto kCarriedOutBy = &CollectiveBackend::reduce_scatter_add;
  static constexpr auto kWhat = flight::Kind::kReduceScatter;
  std::uint64_t order = 0;
  ReduceArguments arguments;
  std::uint32_t unit = flight::kNoUnit;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t world) const noexcept {
    return arguments.shard_elements * bytes_of(arguments.block_type) * world;
  }
};

/// Merges the norms of all ranks. The merge is exact, so all ranks get the same bits.
struct AllReduceNorm {
  using Reply = GradientNorm;
  static constexpr auto kWhat = flight::Kind::kNorm;
  std::uint64_t order = 0;
  GradientNorm local;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t) const noexcept { return 0; }
};

struct AllReduceAdd {
  using Reply = GradientNorm;  // with want_norm: of the whole result
  static constexpr auto kCarriedOutBy = &CollectiveBackend::all_reduce_add;
  static constexpr auto kWhat = flight::Kind::kAllReduce;
  std::uint64_t order = 0;
  ReduceArguments arguments;
  std::uint32_t unit = flight::kNoUnit;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t) const noexcept {
    return arguments.shard_elements * bytes_of(arguments.block_type);
  }
};

/// Replies with the bytes `mine` of every rank, in rank order. All ranks give the same size, at
/// most kExchangeBytes.
struct Exchange {
  using Reply = std::vector<std::byte>;
  static constexpr auto kWhat = flight::Kind::kExchange;
  std::uint64_t order = 0;
  std::vector<std::byte> mine;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t world) const noexcept {
    return mine.size() * world;
  }
};

struct AllToAll {
  using Reply = void;
  static constexpr auto kCarriedOutBy = &CollectiveBackend::all_to_all;
  static constexpr auto kWhat = flight::Kind::kAllToAll;
  std::uint64_t order = 0;
  AllToAllArguments arguments;
  [[nodiscard]] std::uint64_t bytes(std::uint32_t world) const noexcept {
    return arguments.bytes * world;
  }
};

class Collectives : public Actor<Collectives, AllGather, SkipGather, ReduceScatterAdd,
                                 AllReduceNorm, AllReduceAdd, Exchange, AllToAll> {
 public:
  struct Options {
    CollectiveBackend* backend = nullptr;  // outlives the actor
    std::size_t max_ahead = 1024;          // limit of each sequence's OrderedInbox
    std::uint8_t group = 0;                // of ranks, in the flight recorder
    CommsLog* log = nullptr;               // counts operations; null: none; outlives the actor
    std::vector<std::string> units = {};   // their names, for traces
  };

  struct SequenceCounters {
    std::uint64_t operations = 0;
    std::uint64_t skipped = 0;
    std::uint64_t bytes = 0;   // of whole blocks
    double busy_s = 0;         // time in which an operation was under way
    std::size_t held_max = 0;  // the most operations that had arrived and were not issued yet
  };

  struct Counters {
    SequenceCounters gathers;
    SequenceCounters reductions;
  };

  explicit Collectives(Options options);

  /// Runs the operation when its turn comes, and replies with its result.
  template <class Request>
  void handle(Request request, ReplyTo<Request> reply) {
    if (failed_ != nullptr) {
      reply.fail(failed_);
      return;
    }
    const std::uint64_t order = request.order;
    hold(sequence_of<Request>(), order, Held<Request>{std::move(request), std::move(reply)});
  }
  void handle(SkipGather skip);

  /// Loop thread.
  [[nodiscard]] Counters counters() const noexcept {
    return {gathers_.counters, reductions_.counters};
  }

 private:
  template <class Request>
  struct Held {
    Request request;
    ReplyTo<Request> reply;
  };
  struct Skipped {};

  template <class... Requests>
  struct Sequence {
    using Operation = std::variant<Skipped, Held<Requests>...>;
    template <class Request>
    static constexpr bool kHas = (std::is_same_v<Request, Requests> || ...);

    Name name;  // of its task, and of its track in traces
    OrderedInbox<Operation> inbox;
    bool issuing = false;
    SequenceCounters counters;
    std::uint64_t shared = 0;  // operations that move data between ranks; equal on all ranks
  };
  using Gathers = Sequence<AllGather, AllToAll>;
  using Reductions = Sequence<ReduceScatterAdd, AllReduceNorm, AllReduceAdd, Exchange>;

  template <class Request>
  auto& sequence_of() noexcept {
    if constexpr (Gathers::kHas<Request>) {
      return gathers_;
    } else {
      static_assert(Reductions::kHas<Request>, "a sequence lists each request");
      return reductions_;
    }
  }

  template <class Request>
  static constexpr CommSequence kSequenceOf =
      Gathers::kHas<Request> ? CommSequence::kGathers : CommSequence::kReductions;

  template <class AnySequence>
  void hold(AnySequence& sequence, std::uint64_t order, typename AnySequence::Operation operation);
  template <class AnySequence>
  Task<> issue_ready(AnySequence* sequence);
  template <class Request, class AnySequence>
  Task<> issue(Held<Request>* held, AnySequence* sequence);
  template <class AnySequence>
  Task<> issue(Skipped* skipped, AnySequence* sequence);
  template <class Request>
  Task<typename Request::Reply> carry_out(const Request& request) {
    return (options_.backend->*Request::kCarriedOutBy)(request.arguments);
  }
  Task<GradientNorm> carry_out(AllReduceNorm request);
  Task<std::vector<std::byte>> carry_out(Exchange request);
  [[nodiscard]] Name name_of(flight::Kind what, std::uint32_t unit) const;
  void trace_operation(const flight::Entry& entry, Name track, Name name,
                       std::int64_t began_ns) const;
  void fail_all(std::exception_ptr error);
  void record_blame(const std::exception_ptr& error) const;

  Options options_;
  std::map<std::pair<flight::Kind, std::uint32_t>, Name> names_;
  Gathers gathers_;
  Reductions reductions_;
  NormLimbs own_norm_;            // this rank's norm in the AllReduceNorm under way
  std::vector<NormLimbs> norms_;  // every rank's
  std::exception_ptr failed_;
};

using CollectivesAddress = Collectives::AddressType;

}  // namespace tandem
