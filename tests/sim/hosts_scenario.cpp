// Ranks of several hosts issue collectives of both sequences at once, with at most one fault:
// without one everything ends up where it belongs, sums have the bits of plain loops in rank order,
// and what went from host to host is what two levels need and not a byte more. With one every
// surviving rank ends in time and names who was at fault, whichever level it noticed by.
#include <bit>
#include <memory>
#include <vector>

#include "actors/collectives/hosts/hosts_backend.hpp"
#include "actors/collectives/norm_limbs.hpp"
#include "runtime/sim/sim_net.hpp"
#include "runtime/sim/sim_pool.hpp"
#include "runtime/sleep.hpp"
#include "tests/sim/harness.hpp"
#include "tests/support/reduction_reference.hpp"
#include "tests/support/sim_host.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kEndsWithin = milliseconds(500);  // virtual time, after a fault
constexpr std::size_t kPieceElements = kNormTile;

enum class Fault { kNone, kSlow, kSlowLinks, kPartition, kDeath, kHostDeath, kGivesUp, kCount };
enum class What { kAllGather, kAllToAll, kReduceScatter, kAllReduce, kExchange };

struct Operation {
  What what;
  std::size_t size;  // bytes, or elements of a reduction
  DType type = DType::kF32;
  AccumulateMode mode = AccumulateMode::kOverwrite;
  std::vector<float> sum = {};  // a reduction's, made in plain loops
};

/// A bf16 number of any of many magnitudes, so that another order of additions gives other bits.
float number(std::size_t of, std::size_t i) {
  const std::uint32_t bits = test::mixed(static_cast<std::uint32_t>(i + 7919 * of));
  const std::uint32_t exponent = 107 + bits % 40;
  return std::bit_cast<float>((bits & 0x807f0000) | exponent << 23);
}
std::byte byte_of(std::size_t of, std::size_t i) {
  return static_cast<std::byte>(test::mixed(static_cast<std::uint32_t>(i + 977 * of)));
}

struct HostsPlan {
  std::uint32_t hosts;
  std::uint32_t per_host;
  std::vector<Operation> gathers = {};
  std::vector<Operation> reductions = {};

  [[nodiscard]] std::uint32_t ranks() const noexcept { return hosts * per_host; }
  [[nodiscard]] std::size_t elements(const Operation& op) const noexcept {  // per block
    return op.what == What::kReduceScatter ? op.size * ranks() : op.size;
  }
  [[nodiscard]] static bool wants_norm(const Operation& op) noexcept {
    return op.size % kNormTile == 0;
  }
  /// Returns the bytes that all hosts together send to other hosts.
  [[nodiscard]] std::uint64_t bytes_between_hosts() const;
};

std::uint64_t HostsPlan::bytes_between_hosts() const {
  std::uint64_t once = 0;  // between two hosts that are neighbours
  for (const Operation& op : gathers) {
    once += ranks() * op.size * (op.what == What::kAllGather ? 1 : per_host);
  }
  for (const Operation& op : reductions) {
    if (op.what == What::kExchange) {
      once += ranks() * op.size;
    } else if (per_host == 1) {  // straight to the owners, and an all-reduce's sums back to all
      const bool is_all = op.what == What::kAllReduce;
      once += elements(op) * (bytes_of(op.type) + (is_all ? sizeof(float) : 0));
      once += is_all && wants_norm(op) ? ranks() * sizeof(NormLimbs) : 0;
    } else if (op.what == What::kReduceScatter) {
      const std::size_t owners = op.mode == AccumulateMode::kAdd ? 2 : 1;
      once += (ranks() + owners * per_host) * op.size * sizeof(float);
    } else {
      const std::size_t rest = op.size % (per_host * kNormTile);  // for every rank of a host
      once += 2 * (op.size - rest + per_host * rest) * sizeof(float);
    }
  }
  return once * (hosts - 1);
}

Operation draw_gather(Random& random, const HostsPlan& plan) {
  const auto what = static_cast<What>(random.below(2));
  const std::size_t pieces = plan.ranks() > 64 ? 1 : 3;
  std::size_t bytes = 1 + random.below(pieces * kPieceElements * sizeof(float));
  if (what == What::kAllToAll) {
    bytes = 1 + bytes / 8;
  }
  return {.what = what, .size = plan.ranks() > 64 ? 1 + bytes / 16 : bytes};
}

Operation draw_reduction(Random& random, const HostsPlan& plan) {
  Operation op{.what = static_cast<What>(2 + random.below(3)), .size = 0};
  op.type = random.chance(0.5) ? DType::kF32 : DType::kBF16;
  op.mode = random.chance(0.5) ? AccumulateMode::kOverwrite : AccumulateMode::kAdd;
  if (op.what == What::kExchange) {
    op.size = random.below(700);
    return op;
  }
  // Without a norm a shard may have any number of elements.
  op.size = op.what == What::kReduceScatter && plan.ranks() > 64
                ? 1 + random.below(16)
                : kNormTile * (1 + random.below(5));
  const std::size_t count = plan.elements(op);
  op.sum.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    float sum = op.mode == AccumulateMode::kAdd ? number(99, i) : number(0, i);
    for (std::uint32_t r = op.mode == AccumulateMode::kAdd ? 0 : 1; r < plan.ranks(); ++r) {
      sum += number(r, i);
    }
    op.sum[i] = sum;
  }
  return op;
}

class HostsRank {
 public:
  HostsRank(Run& run, const HostsPlan& plan, std::uint32_t rank, SimNet& links, SimHost& host,
            std::size_t gives_up_at)
      : rank(rank),
        scope(run.world.loop(rank), Name("main")),
        run_(run),
        plan_(plan),
        random_(run.random.fork("rank").fork(rank)),
        gives_up_at_(gives_up_at),
        workers_(run.world, rank, {.threads = 2, .chunk_time = microseconds(1 + random_.below(9))}),
        pool_(run.world.loop(rank), {.threads = 2, .driver = &workers_}),
        net_(links.attach(rank)),
        local_(host.attach(rank, pool_)),
        backend_(*local_, net_, pool_, {.piece_bytes = kPieceElements * sizeof(float)}) {
    run.watched.push_back(&scope);
    scope.spawn("main", &HostsRank::main, this);
  }

  std::uint32_t rank;
  Scope scope;
  TimePoint ended_at;
  std::optional<std::uint32_t> failed_rank;  // that this one names
  std::string failure;

 private:
  static Task<> main(HostsRank* self) {
    try {
      co_await with_scope(
          [](Scope& both, HostsRank* of) -> Task<> {
            both.spawn("gathers", &HostsRank::gather, of);
            both.spawn("reductions", &HostsRank::reduce, of);
            co_return;
          },
          self);
    } catch (const PeerLost& lost) {
      self->failed_rank = lost.rank();
      self->failure = lost.what();
    } catch (const std::exception& error) {
      self->failed_rank = self->rank;
      self->failure = error.what();
    }
    if (self->failed_rank.has_value()) {
      self->backend_.fail(*self->failed_rank, self->failure);
    }
    self->ended_at = EventLoop::current().now();
  }

  Task<> gather() {
    for (const Operation& op : plan_.gathers) {
      co_await sleep_for(microseconds(random_.between(0, 30)));
      Task<> moved = op.what == What::kAllGather ? all_gather(&op) : all_to_all(&op);
      co_await std::move(moved);
    }
  }

  Task<> all_gather(const Operation* op) {
    const std::size_t n = op->size;
    std::vector<std::byte> shard(n), block(plan_.ranks() * n);
    for (std::size_t i = 0; i < n; ++i) {
      shard[i] = byte_of(rank, i);
    }
    co_await backend_.all_gather({shard.data(), block.data(), n});
    for (std::size_t i = 0; i < block.size(); ++i) {
      require(block[i] == byte_of(i / n, i % n), "an all-gather");
    }
  }

  Task<> all_to_all(const Operation* op) {
    const std::size_t n = op->size;
    std::vector<std::byte> from(plan_.ranks() * n), into(plan_.ranks() * n);
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = byte_of(rank * 1000 + i / n, i % n);
    }
    co_await backend_.all_to_all({from.data(), into.data(), n});
    for (std::size_t i = 0; i < into.size(); ++i) {
      require(into[i] == byte_of(i / n * 1000 + rank, i % n), "an all-to-all");
    }
  }

  Task<> reduce() {
    for (std::size_t i = 0; i < plan_.reductions.size(); ++i) {
      const Operation& op = plan_.reductions[i];
      co_await sleep_for(microseconds(random_.between(0, 30)));
      if (i == gives_up_at_) {
        throw failure_of_program();
      }
      Task<> reduced = op.what == What::kExchange ? exchange(&op) : add(&op);
      co_await std::move(reduced);
    }
  }
  static Error failure_of_program() { return {ExitCode::kFailure, "[test] it has enough"}; }

  Task<> exchange(const Operation* op) {
    const std::size_t n = op->size;
    std::vector<std::byte> mine(n), all(plan_.ranks() * n);
    for (std::size_t i = 0; i < n; ++i) {
      mine[i] = byte_of(rank, i);
    }
    co_await backend_.exchange({mine.data(), all.data(), n});
    for (std::size_t i = 0; i < all.size(); ++i) {
      require(all[i] == byte_of(i / n, i % n), "an exchange");
    }
  }

  Task<> add(const Operation* op) {
    const bool is_all = op->what == What::kAllReduce;
    const std::size_t begin = is_all ? 0 : rank * op->size;
    std::vector<float> block(plan_.elements(*op)), sum(op->size);
    for (std::size_t i = 0; i < block.size(); ++i) {
      block[i] = number(rank, i);
    }
    std::vector<std::byte> typed(block.size() * bytes_of(op->type));
    cast(block.data(), DType::kF32, typed.data(), op->type, 0, block.size());
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] = number(99, begin + i);
    }
    ReduceArguments a{.block = typed.data(),
                      .block_type = op->type,
                      .accumulator = sum.data(),
                      .shard_elements = op->size,
                      .mode = op->mode,
                      .want_norm = HostsPlan::wants_norm(*op)};
    Task<GradientNorm> added = is_all ? backend_.all_reduce_add(a) : backend_.reduce_scatter_add(a);
    const GradientNorm norm = co_await std::move(added);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      require(
          std::bit_cast<std::uint32_t>(sum[i]) == std::bit_cast<std::uint32_t>(op->sum[begin + i]),
          "a sum");
    }
    if (a.want_norm) {
      GradientNorm wanted;
      add_norm(sum.data(), DType::kF32, 0, sum.size(), wanted);
      require(norm.sum_of_squares == wanted.sum_of_squares, "a norm");
    }
  }

  void require(bool holds, const char* what) {
    if (!holds) {
      run_.breach(fmt::format("rank {}: {} differs from plain loops'", rank, what));
    }
  }

  Run& run_;
  const HostsPlan& plan_;
  Random random_;
  std::size_t gives_up_at_;
  SimPool workers_;
  CpuPool pool_;
  Net net_;
  std::unique_ptr<HostLevel> local_;
  HostsBackend backend_;
};

class Rehearsal {
 public:
  Rehearsal(std::uint64_t seed, const HostsPlan& plan, Fault fault, Random random)
      : plan_(plan), run_("hosts", seed, plan.ranks()), fault_(fault), links_(run_.world, {}) {
    victim_ = static_cast<std::uint32_t>(random.below(plan.ranks()));
    const std::size_t gives_up_at = random.below(plan.reductions.size());
    for (std::uint32_t rank = 0; rank < plan.ranks(); ++rank) {
      if (rank % plan.per_host == 0) {
        hosts_.push_back(std::make_unique<SimHost>(run_.world, rank, plan.per_host));
      }
      ranks_.push_back(std::make_unique<HostsRank>(
          run_, plan, rank, links_, *hosts_.back(),
          fault == Fault::kGivesUp && rank == victim_ ? gives_up_at : SIZE_MAX));
    }
    strike(random);
  }

  std::uint64_t to_the_end() {
    run_.until("every rank ends", [this] { return all_ended(); });
    check_end();
    for (const auto& rank : ranks_) {
      if (!run_.world.alive(rank->rank)) {
        links_.cut(rank->rank);
        hosts_[rank->rank / plan_.per_host]->cut(rank->rank);
        run_.world.bury(rank->rank);
      }
    }
    ended_ = 0;
    run_.until("the dead are buried", [this] { return all_ended(); });
    return run_.world.log().hash();
  }

 private:
  void strike(Random& random) {
    const Duration when = microseconds(random.between(10, 600));
    const std::uint32_t host = victim_ / plan_.per_host;
    switch (fault_) {
      case Fault::kSlow:
        run_.world.slow_down(victim_, 3 + 10 * random.uniform());
        break;
      case Fault::kSlowLinks:
        for (int i = 0; i < 8; ++i) {
          const auto from = static_cast<std::uint32_t>(random.below(plan_.ranks()));
          const std::uint32_t to = (from + plan_.per_host) % plan_.ranks();
          run_.world.after(microseconds(random.between(10, 2000)), 0,
                           [this, from, to] { links_.clog(from, to, milliseconds(1)); });
        }
        break;
      case Fault::kPartition:  // the hosts up to the victim's from the others, and it heals
        run_.world.after(when, 0, [this, host] {
          for (std::uint32_t a = 0; a < plan_.ranks(); ++a) {
            for (std::uint32_t b = 0; b < plan_.ranks(); ++b) {
              if ((a / plan_.per_host <= host) != (b / plan_.per_host <= host) &&
                  a % plan_.per_host == b % plan_.per_host) {
                links_.clog(a, b, milliseconds(20));
              }
            }
          }
        });
        break;
      case Fault::kDeath:
      case Fault::kHostDeath:
        run_.world.after(when, (victim_ + 1) % plan_.ranks(), [this, host] {
          if (all_ended()) {
            return;
          }
          struck_at_ = run_.world.now();
          for (std::uint32_t local_rank = 0; local_rank < plan_.per_host; ++local_rank) {
            const std::uint32_t rank = host * plan_.per_host + local_rank;
            if (rank == victim_ || fault_ == Fault::kHostDeath) {
              run_.world.kill(rank);
            }
          }
        });
        break;
      case Fault::kGivesUp:
      case Fault::kNone:
      case Fault::kCount:
        break;
    }
  }

  // Asked after each step, so of one rank at a time: one that has ended or died stays so.
  [[nodiscard]] bool all_ended() {
    const auto has_ended = [this](const HostsRank& rank) {
      return !run_.world.alive(rank.rank) || rank.scope.running() == 0;
    };
    while (ended_ < ranks_.size() && has_ended(*ranks_[ended_])) {
      ++ended_;
    }
    return ended_ == ranks_.size();
  }

  void check_end() {
    const bool harmless = fault_ == Fault::kNone || fault_ == Fault::kSlow ||
                          fault_ == Fault::kSlowLinks || fault_ == Fault::kPartition;
    bool any = false;
    TimePoint first = struck_at_, last;
    for (const auto& rank : ranks_) {
      if (!run_.world.alive(rank->rank) || !rank->failed_rank.has_value()) {
        any = any || !run_.world.alive(rank->rank);
        continue;
      }
      any = true;
      run_.require(!harmless, "rank {} failed though nothing was at fault: {}", rank->rank,
                   rank->failure);
      check_blame(*rank);
      first = std::min(first, rank->ended_at);
      last = std::max(last, rank->ended_at);
    }
    if (any) {
      run_.require(last < first + kEndsWithin, "a rank ended {} ns after the fault",
                   (last - first).count());
      return;
    }
    run_.require(links_.frames_under_way() == 0, "{} frames were sent and not received",
                 links_.frames_under_way());
    std::uint64_t bytes = 0;
    for (std::uint32_t from = 0; from < plan_.ranks(); ++from) {
      for (std::uint32_t to = 0; to < plan_.ranks(); ++to) {
        bytes += links_.bytes_sent(from, to);
      }
    }
    run_.require(bytes == plan_.bytes_between_hosts(), "{} bytes went between hosts instead of {}",
                 bytes, plan_.bytes_between_hosts());
  }

  void check_blame(const HostsRank& rank) {
    const bool right = fault_ == Fault::kHostDeath
                           ? *rank.failed_rank / plan_.per_host == victim_ / plan_.per_host
                           : *rank.failed_rank == victim_;
    run_.require(right, "rank {} blames rank {} instead of {}: {}", rank.rank, *rank.failed_rank,
                 victim_, rank.failure);
  }

  const HostsPlan& plan_;
  mutable Run run_;
  Fault fault_;
  SimNet links_;
  std::uint32_t victim_ = 0;
  TimePoint struck_at_ = TimePoint::max();
  std::vector<std::unique_ptr<SimHost>> hosts_;
  std::vector<std::unique_ptr<HostsRank>> ranks_;
  std::size_t ended_ = 0;  // the first ranks that have ended
};

}  // namespace

std::uint64_t rehearse_hosts(std::uint64_t seed, std::uint32_t hosts, std::uint32_t per_host) {
  Random random = Random(seed).fork("hosts plan");
  if (hosts == 0) {
    hosts = static_cast<std::uint32_t>(2 + random.below(4));
    per_host = static_cast<std::uint32_t>(1 + random.below(4));
  }
  HostsPlan plan{.hosts = hosts, .per_host = per_host};
  const std::size_t most = plan.ranks() > 64 ? 1 : 4;
  for (std::size_t i = 1 + random.below(most); i > 0; --i) {
    plan.gathers.push_back(draw_gather(random, plan));
  }
  for (std::size_t i = 1 + random.below(most); i > 0; --i) {
    plan.reductions.push_back(draw_reduction(random, plan));
  }
  const Fault fault =
      random.chance(0.3)
          ? Fault::kNone
          : static_cast<Fault>(random.below(static_cast<std::uint64_t>(Fault::kCount)));
  return Rehearsal(seed, plan, fault, random).to_the_end();
}

}  // namespace tandem::sim_test
