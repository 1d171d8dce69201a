// tests/support/fakes/fake_nccl.hpp — NCCL as the project's table of functions sees it, for several
// ranks in one process, on the streams of FakeCuda.
//
// The n-th launch of a communicator (a group, or a call outside of one) is an operation of its
// stream: it starts when the n-th launches of all ranks have, moves the bytes then, and never
// starts when they do not fit together. Ranks may be on several hosts, whose links cost time or
// pass nothing. A non-blocking communicator may answer "in progress": what was launched then comes
// into the stream only after some questions, so an event recorded before is an event too early. The
// table's functions have no argument for a fake, so one lives at a time. Any thread.
#pragma once

#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/collectives/nccl/nccl_api.hpp"
#include "actors/kernels/reduce.hpp"
#include "runtime/util/check.hpp"
#include "tests/support/fakes/fake_cuda.hpp"

namespace tandem::test {

class FakeNccl {
 public:
  FakeNccl() {
    TANDEM_CHECK(current() == nullptr, "one fake lives at a time");
    current() = this;
  }
  ~FakeNccl() { current() = nullptr; }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  static const NcclApi& api();
  static constexpr std::size_t kRanksMax = 64;

  // ---- what a test sets and sees; set before ranks run ----
  int questions = 0;  // until a launch, or the making of a communicator, is no longer in progress
  Duration cost = std::chrono::microseconds(20);  // an operation's, once all ranks are there
  std::size_t per_host = kRanksMax;               // ranks, which are neighbours
  Duration host_cost{0};                          // more, of an operation between hosts
  std::vector<bool> cut_off = flags();            // hosts from which NCCL reaches no other one
  std::vector<bool> stands_still = flags();       // ranks whose launches never start
  std::vector<bool> never_connects = flags();     // they stay in progress for ever
  std::vector<NcclResult> refuses{kRanksMax, NcclResult::kSuccess};  // a rank's next launch
  bool abort_hangs = false;                                          // until let_abort_go()

  /// From now on the rank's communicators say so when they are asked.
  void fail(std::uint32_t rank, NcclResult result) {
    const std::lock_guard lock(mutex_);
    failing_[rank] = result;
  }
  void let_abort_go() {
    const std::lock_guard lock(mutex_);
    abort_hangs = false;
    abort_goes_.notify_all();
  }
  /// "tandem gathers: all-gather 4096", in the order in which they came into the rank's streams.
  [[nodiscard]] std::vector<std::string> launches(std::uint32_t rank) {
    const std::lock_guard lock(mutex_);
    return launches_[rank];
  }
  [[nodiscard]] int aborted() {
    const std::lock_guard lock(mutex_);
    return aborted_;
  }
  [[nodiscard]] int live() {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  /// Launches of ranks that did not fit together.
  [[nodiscard]] std::vector<std::string> mismatches() {
    const std::lock_guard lock(mutex_);
    return mismatches_;
  }

 private:
  enum class Kind : std::uint8_t {
    kAllGather,
    kBroadcast,
    kReduceScatter,
    kAllReduce,
    kSend,
    kReceive
  };
  struct Call {
    Kind kind;
    const void* from;
    void* into;
    std::size_t count;
    NcclType type;
    int peer = 0;  // or root
    [[nodiscard]] std::size_t bytes() const { return count * width(type); }
  };
  struct Launch {
    std::vector<Call> calls;
    bool started = false;
  };
  struct Clique;
  struct Communicator {
    std::shared_ptr<Clique> clique;
    std::string name;
    int rank = 0;
    int questions_left = 0;  // until it is no longer in progress
    bool entering = false;   // a launch comes into the stream
    bool aborted = false;
    std::uint64_t launches = 0;
    std::shared_ptr<Launch> waiting;  // in progress
    void* stream = nullptr;
  };
  struct Meeting {
    std::map<int, std::shared_ptr<Launch>> by_rank;
    bool moved = false;
    bool fits = true;
  };
  struct Clique {
    int world = 0;
    std::map<std::uint64_t, Meeting> meetings;
  };
  struct Group {
    int depth = 0;
    Communicator* communicator = nullptr;
    void* stream = nullptr;
    std::vector<Call> calls;
  };

  static std::vector<bool> flags() { return std::vector<bool>(kRanksMax); }
  [[nodiscard]] std::size_t host_of(int rank) const {
    return static_cast<std::size_t>(rank) / per_host;
  }
  /// Whether ranks 0 to world - 1 are on several hosts.
  [[nodiscard]] bool has_hosts(const Clique& clique) const { return host_of(clique.world - 1) > 0; }

  static FakeNccl*& current() {
    static FakeNccl* fake = nullptr;
    return fake;
  }
  static Group& group() {
    thread_local Group made;
    return made;
  }
  static std::size_t width(NcclType type) {
    return type == NcclType::kBytes ? 1 : type == NcclType::kF32 ? 4 : 2;
  }
  static DType number_type(NcclType type) {
    return type == NcclType::kF32   ? DType::kF32
           : type == NcclType::kF16 ? DType::kF16
                                    : DType::kBF16;
  }
  NcclResult take(Call call, void* communicator, void* stream) {
    const Uncounted uncounted;
    auto* const at = static_cast<Communicator*>(communicator);
    TANDEM_CHECK(!at->aborted, "a call on an aborted communicator");
    Group& open = group();
    TANDEM_CHECK(open.depth > 0 || (call.kind != Kind::kSend && call.kind != Kind::kReceive),
                 "ours are always in groups");
    open.communicator = at;
    open.stream = stream;
    open.calls.push_back(call);
    return open.depth > 0 ? NcclResult::kSuccess : launch();
  }

  NcclResult launch() {
    Group& open = group();
    auto made = std::make_shared<Launch>();
    made->calls = std::exchange(open.calls, {});
    Communicator* const at = open.communicator;
    {
      const std::lock_guard lock(mutex_);
      const auto rank = static_cast<std::size_t>(at->rank);
      if (const NcclResult refused = std::exchange(refuses[rank], NcclResult::kSuccess);
          refused != NcclResult::kSuccess) {
        return refused;
      }
      TANDEM_CHECK(at->questions_left == 0, "a launch while another one is in progress");
      at->stream = open.stream;
      if (questions > 0) {
        at->questions_left = questions;
        at->waiting = std::move(made);
        return NcclResult::kInProgress;
      }
    }
    into_stream(*at, std::move(made));
    return NcclResult::kSuccess;
  }

  void into_stream(Communicator& at, std::shared_ptr<Launch> made) {
    const std::shared_ptr<Clique> clique = at.clique;
    std::uint64_t number = 0;
    Duration takes = cost;
    {
      const std::lock_guard lock(mutex_);
      number = at.launches++;
      takes += has_hosts(*clique) ? host_cost : Duration(0);
      clique->meetings[number].by_rank[at.rank] = made;
      static constexpr const char* kNames[] = {"all-gather", "broadcast", "reduce-scatter",
                                               "all-reduce", "transfer",  "transfer"};
      launches_[static_cast<std::size_t>(at.rank)].push_back(fmt::format(
          "{}: {} {}", at.name,
          made->calls.empty() ? "nothing"
                              : kNames[static_cast<std::size_t>(made->calls.front().kind)],
          made->calls.empty() ? 0 : made->calls.front().bytes()));
    }
    FakeCuda::of_test().launch(at.stream,
                               {.ready = [this, &at, clique, number,
                                          made] { return is_ready(at, *clique, number, *made); },
                                .cost = takes,
                                .run = [this, &at, clique, number] { move(at, *clique, number); }});
  }

  bool is_ready(const Communicator& at, Clique& clique, std::uint64_t number, Launch& launch) {
    const std::lock_guard lock(mutex_);
    if (at.aborted) {
      return true;  // the kernel ends
    }
    if (stands_still[static_cast<std::size_t>(at.rank)]) {
      return false;
    }
    launch.started = true;
    Meeting& meeting = clique.meetings[number];
    if (static_cast<int>(meeting.by_rank.size()) < clique.world) {
      return false;
    }
    for (const auto& [rank, other] : meeting.by_rank) {
      if (!other->started || (cut_off[host_of(rank)] && has_hosts(clique))) {
        return false;
      }
    }
    return meeting.moved || fits(meeting);
  }

  bool fits(Meeting& meeting) {
    const Launch& first = *meeting.by_rank.at(0);
    for (const auto& [rank, other] : meeting.by_rank) {
      for (const Call& call : other->calls) {
        if (call.kind == Kind::kSend) {
          meeting.fits = meeting.fits && counterpart(meeting, rank, call) != nullptr;
        } else if (call.kind != Kind::kReceive) {
          meeting.fits = meeting.fits && other->calls.size() == first.calls.size() &&
                         call.kind == first.calls[&call - other->calls.data()].kind &&
                         call.count == first.calls[&call - other->calls.data()].count;
        }
      }
    }
    if (!meeting.fits) {
      mismatches_.push_back("launches that do not fit together");
    }
    return meeting.fits;
  }

  static const Call* counterpart(const Meeting& meeting, int from, const Call& send) {
    const Call* found = nullptr;
    for (const Call& call : meeting.by_rank.at(send.peer)->calls) {
      if (call.kind == Kind::kReceive && call.peer == from && call.bytes() == send.bytes()) {
        found = &call;
      }
    }
    return found;
  }

  void move(const Communicator& at, Clique& clique, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    if (at.aborted) {
      return;
    }
    Meeting& meeting = clique.meetings[number];
    if (std::exchange(meeting.moved, true)) {
      return;
    }
    for (const auto& [rank, launch] : meeting.by_rank) {
      for (std::size_t i = 0; i < launch->calls.size(); ++i) {
        move(meeting, rank, i, launch->calls[i]);
      }
    }
  }

  // Copies the blocks that this call of this rank gives to the other ranks, so that no rank's
  // operand is read after it was written.
  static void move(const Meeting& meeting, int rank, std::size_t i, const Call& call) {
    const auto give = [](void* to, const void* from, std::size_t bytes) {
      check(to, bytes);
      check(from, bytes);
      std::memmove(to, from, bytes);
    };
    switch (call.kind) {
      case Kind::kSend:
        give(counterpart(meeting, rank, call)->into, call.from, call.bytes());
        break;
      case Kind::kReceive:
        break;
      case Kind::kBroadcast:
        if (call.peer == rank) {
          for (const auto& [to, launch] : meeting.by_rank) {
            give(launch->calls[i].into, call.from, call.bytes());
          }
        }
        break;
      case Kind::kReduceScatter:
      case Kind::kAllReduce:
        add_up(meeting, rank, i, call);
        break;
      case Kind::kAllGather:
        for (const auto& [to, launch] : meeting.by_rank) {
          give(static_cast<std::byte*>(launch->calls[i].into) +
                   static_cast<std::size_t>(rank) * call.bytes(),
               call.from, call.bytes());
        }
        break;
    }
  }

  // From the last rank to the first, so that a test can tell the order from ours.
  static void add_up(const Meeting& meeting, int rank, std::size_t i, const Call& call) {
    const std::size_t at =
        call.kind == Kind::kReduceScatter ? static_cast<std::size_t>(rank) * call.bytes() : 0;
    std::vector<float> sum(call.count);
    AccumulateMode mode = AccumulateMode::kOverwrite;
    for (auto from = meeting.by_rank.rbegin(); from != meeting.by_rank.rend(); ++from) {
      const void* part = static_cast<const std::byte*>(from->second->calls[i].from) + at;
      check(part, call.bytes());
      accumulate(sum.data(), part, number_type(call.type), 0, call.count, mode);
      mode = AccumulateMode::kAdd;
    }
    check(call.into, call.bytes());
    cast(sum.data(), DType::kF32, call.into, number_type(call.type), 0, call.count);
  }

  static void check(const void* at, std::size_t bytes) {
    const bool reached = bytes == 0 || FakeCuda::of_test().may_reach(at, bytes);
    TANDEM_CHECK(reached, "NCCL reaches its operands");
  }

  // Several threads may ask: it is no longer in progress when the launch is in the stream, not
  // before.
  NcclResult ask(Communicator& at, NcclResult* state) {
    const Uncounted uncounted;
    std::unique_lock lock(mutex_);
    TANDEM_CHECK(!at.aborted, "a question about an aborted communicator");
    const auto rank = static_cast<std::size_t>(at.rank);
    *state = failing_[rank];
    if (*state != NcclResult::kSuccess) {
      return NcclResult::kSuccess;
    }
    if (never_connects[rank] || at.questions_left > 1 || at.entering) {
      at.questions_left -= at.questions_left > 1 ? 1 : 0;
      *state = NcclResult::kInProgress;
    } else if (at.questions_left == 1) {
      at.entering = true;
      std::shared_ptr<Launch> ready = std::move(at.waiting);
      lock.unlock();
      if (ready != nullptr) {
        into_stream(at, std::move(ready));
      }
      lock.lock();
      at.entering = false;
      at.questions_left = 0;
    }
    return NcclResult::kSuccess;
  }

  NcclResult make(void** communicator, int world, const NcclUniqueId& id, int rank,
                  const NcclConfig& config) {
    const std::lock_guard lock(mutex_);
    TANDEM_CHECK(config.blocking == 0, "ours are not blocking");
    std::shared_ptr<Clique>& clique = cliques_[std::string(id.bytes, sizeof(id.bytes))];
    if (clique == nullptr) {
      clique = std::make_shared<Clique>();
    }
    clique->world = world;
    communicators_.push_back(std::make_unique<Communicator>());
    Communicator& made = *communicators_.back();
    made.clique = clique;
    made.name = config.name;
    made.rank = rank;
    made.questions_left = questions;
    *communicator = &made;
    ++live_;
    const bool waits = questions > 0 || never_connects[static_cast<std::size_t>(rank)];
    return waits ? NcclResult::kInProgress : NcclResult::kSuccess;
  }

  NcclResult abort(Communicator& at) {
    std::unique_lock lock(mutex_);
    abort_goes_.wait(lock, [this] { return !abort_hangs; });
    at.aborted = true;
    --live_;
    ++aborted_;
    return NcclResult::kSuccess;
  }

  std::mutex mutex_;
  std::condition_variable abort_goes_;
  std::map<std::string, std::shared_ptr<Clique>> cliques_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::array<NcclResult, kRanksMax> failing_{};
  std::array<std::vector<std::string>, kRanksMax> launches_;
  std::vector<std::string> mismatches_;
  int aborted_ = 0;
  int live_ = 0;
  int ids_ = 0;
};

inline const NcclApi& FakeNccl::api() {
  static constexpr NcclApi kFake{
      .version =
          [](int* version) {
            *version = 22809;
            return NcclResult::kSuccess;
          },
      .unique_id =
          [](NcclUniqueId* id) {
            const std::lock_guard lock(current()->mutex_);
            *id = {};
            std::snprintf(id->bytes, sizeof(id->bytes), "id %d", current()->ids_++);
            return NcclResult::kSuccess;
          },
      .init_rank =
          [](void** communicator, int world, NcclUniqueId id, int rank, NcclConfig* config) {
            return current()->make(communicator, world, id, rank, *config);
          },
      .async_error =
          [](void* communicator, NcclResult* state) {
            return current()->ask(*static_cast<Communicator*>(communicator), state);
          },
      .finalize = [](void*) { return NcclResult::kSuccess; },
      .destroy =
          [](void* communicator) {
            const std::lock_guard lock(current()->mutex_);
            static_cast<Communicator*>(communicator)->aborted = true;
            --current()->live_;
            return NcclResult::kSuccess;
          },
      .abort =
          [](void* communicator) {
            return current()->abort(*static_cast<Communicator*>(communicator));
          },
      .text_of =
          [](NcclResult result) {
            return result == NcclResult::kRemoteError ? "remote process exited" : "an error";
          },
      .last_error = [](void*) { return ""; },
      .group_start =
          [] {
            ++group().depth;
            return NcclResult::kSuccess;
          },
      .group_end =
          [] {
            const Uncounted uncounted;
            TANDEM_CHECK(group().depth > 0, "a group ends that began");
            --group().depth;
            return group().calls.empty() ? NcclResult::kSuccess : current()->launch();
          },
      .all_gather =
          [](const void* from, void* into, std::size_t count, NcclType type, void* communicator,
             void* stream) {
            return current()->take({Kind::kAllGather, from, into, count, type}, communicator,
                                   stream);
          },
      .broadcast =
          [](const void* from, void* into, std::size_t count, NcclType type, int root,
             void* communicator, void* stream) {
            return current()->take({Kind::kBroadcast, from, into, count, type, root}, communicator,
                                   stream);
          },
      .reduce_scatter =
          [](const void* from, void* into, std::size_t count, NcclType type, NcclOp /*op*/,
             void* communicator, void* stream) {
            return current()->take({Kind::kReduceScatter, from, into, count, type}, communicator,
                                   stream);
          },
      .all_reduce =
          [](const void* from, void* into, std::size_t count, NcclType type, NcclOp /*op*/,
             void* communicator, void* stream) {
            return current()->take({Kind::kAllReduce, from, into, count, type}, communicator,
                                   stream);
          },
      .send =
          [](const void* from, std::size_t count, NcclType type, int peer, void* communicator,
             void* stream) {
            return current()->take({Kind::kSend, from, nullptr, count, type, peer}, communicator,
                                   stream);
          },
      .receive =
          [](void* into, std::size_t count, NcclType type, int peer, void* communicator,
             void* stream) {
            return current()->take({Kind::kReceive, nullptr, into, count, type, peer}, communicator,
                                   stream);
          }};
  return kFake;
}

}  // namespace tandem::test
