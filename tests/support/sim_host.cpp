#include "tests/support/sim_host.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "actors/collectives/rank_sum.hpp"
#include "runtime/event.hpp"
#include "runtime/io/net.hpp"

namespace tandem {

class SimHost::Member final : public HostLevel {
 public:
  Member(SimHost& host, std::uint32_t rank, CpuPool& pool, SimHost::Elsewhere elsewhere)
      : host_(host), rank_(rank), pool_(pool), elsewhere_(std::move(elsewhere)) {}

  [[nodiscard]] std::uint32_t world() const noexcept override {
    return static_cast<std::uint32_t>(host_.members_.size());
  }
  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  std::byte* allocate(std::size_t bytes) override { return allocated_.emplace_back(bytes).data(); }

  Task<> gather(HostLevel::Sequence sequence, Gather what) override {
    const std::vector<Place>* places =
        co_await meet(sequence, fmt::format("gather of {}", what.bytes), {{what.part, what.bytes}});
    for (std::uint32_t from = 0; from < world(); ++from) {
      copy((*places)[from].operand.data(), what.into + from * what.stride, what.bytes);
    }
  }

  Task<> reduce(Reduce what) override {
    const std::size_t bytes = what.elements * bytes_of(what.block_type);
    std::vector<std::span<const std::byte>> slices;
    for (std::uint32_t of = 0; of < (what.stride > 0 ? world() : 1); ++of) {
      slices.emplace_back(what.block + of * what.stride * bytes_of(what.block_type), bytes);
    }
    const std::vector<Place>* places =
        co_await meet(HostLevel::Sequence::kReductions,
                      fmt::format("reduction of {}, type {}, mode {}", bytes,
                                  static_cast<int>(what.block_type), static_cast<int>(what.mode)),
                      slices);
    const std::size_t slice = what.stride > 0 ? rank_ * bytes : 0;
    co_await pool_.run([places, what, slice] {
      add_ranks(
          {.sum = what.sum,
           .type = what.block_type,
           .count = what.elements,
           .mode = what.mode,
           .ranks = static_cast<std::uint32_t>(places->size()),
           .tree = what.tree},
          [&](std::uint32_t from) { return (*places)[from].operand.data() + slice; }, nullptr);
    });
  }

  Task<> all_to_all(AllToAllArguments a) override {
    const std::vector<Place>* places =
        co_await meet(HostLevel::Sequence::kGathers, fmt::format("all-to-all of {}", a.bytes),
                      {{a.from.host(), world() * a.bytes}});
    for (std::uint32_t from = 0; from < world(); ++from) {
      copy((*places)[from].operand.data() + rank_ * a.bytes, a.into.host() + from * a.bytes,
           a.bytes);
    }
  }

  void say_awaited(std::uint32_t rank, Awaited awaited) noexcept override {
    host_.awaited_[rank] = awaited;
    spoke_at_ = host_.world_.now();
    if (rank == host_.first_ + rank_) {
      say_elsewhere();
    }
  }
  [[nodiscard]] Awaited awaited(std::uint32_t rank) const noexcept override {
    const auto said = host_.awaited_.find(rank);
    Awaited all = said == host_.awaited_.end() ? Awaited() : said->second;
    if (const std::uint32_t local = rank - host_.first_; local < world()) {
      const Member& member = *host_.members_[local];
      for (const Waits& waits : member.waits_) {
        if (waits.for_count > 0) {
          all.add(host_.first_ + member.first_absent(waits));
        }
      }
      if (member.elsewhere_.run) {
        all.add(member.elsewhere_.run->in_groups());
      }
      all.set_silent(&member != this &&
                     host_.world_.now() - member.spoke_at_ > host_.options_.silent_after);
    }
    return all;
  }

  void fail(std::uint32_t failed_rank, std::string_view why) noexcept override {
    if (!broken_) {
      break_here(failed_rank, std::string(why));
      host_.tell(failed_rank, std::string(why), rank_);
    }
  }

  void break_here(std::uint32_t failed_rank, std::string why) {
    if (!broken_) {
      broken_.emplace(fmt::format("[collectives] {}; rank {} is lost", why, failed_rank),
                      failed_rank);
      if (elsewhere_.run) {
        elsewhere_.run->fail(failed_rank, why);
      }
      wake(0);
      wake(1);
    }
  }
  void wake(std::size_t sequence) noexcept {
    woken_[sequence].set();
    woken_[sequence].reset();
  }

 private:
  struct Waits {
    const SimHost::Sequence* sequence = nullptr;
    std::uint64_t for_count = 0;  // 0: it does not
    TimePoint since;
  };
  [[nodiscard]] static std::uint32_t first_absent(const Waits& waits) {
    const auto& arrived = waits.sequence->arrived;
    return static_cast<std::uint32_t>(
        std::ranges::find_if(arrived, [&](std::uint64_t n) { return n < waits.for_count; }) -
        arrived.begin());
  }
  // As ShmSync does; of another host its own ranks say it first.
  void say_elsewhere() {
    if (elsewhere_.run) {
      std::vector<Awaited> known;
      for (std::uint32_t rank = 0; rank < host_.all_ranks(); ++rank) {
        known.push_back(awaited(rank));
      }
      elsewhere_.run->know(known);
    }
    if (elsewhere_.group) {
      elsewhere_.group->say(awaited(host_.first_ + rank_));
    }
  }
  void look(const Waits& waits) {
    say_elsewhere();
    if (const auto failure = elsewhere_.group ? elsewhere_.group->failure() : std::nullopt) {
      fail(failure->rank, failure->why);
    }
    look_at_deadline(waits);
  }
  void look_at_deadline(const Waits& waits) {
    const Duration waited = host_.world_.now() - waits.since;
    const std::uint32_t absent = host_.first_ + first_absent(waits);
    if (broken_ || waited < host_.options_.timeout) {
      return;
    }
    const std::uint32_t own = host_.first_ + rank_;
    const EndOfWaits end = elsewhere_.group
                               ? elsewhere_.group->end_of(own, absent)
                               : end_of_waits(own, absent, host_.all_ranks(),
                                              [this](std::uint32_t rank) { return awaited(rank); });
    if (end.rank - host_.first_ < world() || waited >= host_.options_.timeout + kDeadlineGrace) {
      fail(end.rank, fmt::format("rank {} did not arrive in time", absent));
    }
  }
  /// As long as that wait lasts.
  void look_again(const Waits& waits, std::uint64_t count) {
    host_.after(host_.options_.silent_after / 6, rank_, [this, &waits, count] {
      if (waits.for_count == count) {
        look(waits);
        look_again(waits, count);
      }
    });
  }
  static void copy(const std::byte* from, std::byte* into, std::size_t bytes) {
    if (bytes > 0) {
      std::memcpy(into, from, bytes);
    }
  }

  /// Begins the sequence's next operation, and waits until all ranks have; what they brought.
  Task<const std::vector<Place>*> meet(HostLevel::Sequence which, std::string header,
                                       std::vector<std::span<const std::byte>> operand) {
    const auto index = static_cast<std::size_t>(which);
    SimHost::Sequence& sequence = host_.sequences_[index];
    if (broken_) {
      throw PeerLost(*broken_);
    }
    const std::uint64_t count = ++sequence.arrived[rank_];
    std::vector<Place>& places = sequence.places[count % 2];
    places[rank_] = {std::move(header), {}};
    for (const auto& part : operand) {
      places[rank_].operand.insert(places[rank_].operand.end(), part.begin(), part.end());
    }
    const auto all_here = [&sequence, count] {
      return std::ranges::all_of(sequence.arrived, [&](std::uint64_t n) { return n >= count; });
    };
    if (all_here()) {
      for (std::uint32_t peer = 0; peer < world(); ++peer) {
        host_.after(Duration(host_.random_.between(100, 2000)), peer,
                    [member = host_.members_[peer], index] { member->wake(index); });
      }
    }
    Waits& waits = waits_[index];
    waits = {&sequence, count, host_.world_.now()};
    if (host_.options_.timeout > Duration(0)) {
      look_again(waits, count);
    }
    while (!all_here()) {
      if (broken_) {
        waits.for_count = 0;
        throw PeerLost(*broken_);
      }
      co_await woken_[index];
    }
    waits.for_count = 0;
    for (const Place& place : places) {
      if (place.header != places[rank_].header) {
        throw failure(ExitCode::kPeer, "collectives", "ranks of a host differ: {} and {}",
                      place.header, places[rank_].header);
      }
    }
    co_return &places;
  }

  SimHost& host_;
  std::uint32_t rank_;  // on this host
  CpuPool& pool_;
  SimHost::Elsewhere elsewhere_;
  std::vector<HostBuffer> allocated_;
  std::array<Event, 2> woken_;
  std::array<Waits, 2> waits_;
  TimePoint spoke_at_;
  std::optional<PeerLost> broken_;
};

SimHost::SimHost(SimWorld& world, std::uint32_t first, std::uint32_t ranks, Options options)
    : world_(world),
      first_(first),
      random_(world.random().fork("host").fork(first)),
      options_(options),
      members_(ranks) {
  if (options.group_ranks > 0) {
    random_ = random_.fork(options.group_first);
  }
  for (Sequence& sequence : sequences_) {
    sequence.arrived.resize(ranks);
    sequence.places.fill(std::vector<Place>(ranks));
  }
  world_.on_death([this](std::uint32_t dead_in_world) {
    const std::uint32_t dead = dead_in_world - options_.group_first;
    if (dead - first_ < members_.size()) {
      for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
        after(options_.detect_after + Duration(random_.between(0, 1'000'000)), peer,
              [member = members_[peer], dead] { member->break_here(dead, "it died"); });
      }
    }
  });
}

std::unique_ptr<HostLevel> SimHost::attach(std::uint32_t rank, CpuPool& pool, Elsewhere elsewhere) {
  auto member = std::make_unique<Member>(*this, rank - first_, pool, std::move(elsewhere));
  members_[rank - first_] = member.get();
  return member;
}

void SimHost::cut(std::uint32_t rank) { members_[rank - first_]->break_here(rank, "it is cut"); }

void SimHost::tell(std::uint32_t failed_rank, const std::string& why, std::uint32_t except) {
  for (std::uint32_t peer = 0; peer < members_.size(); ++peer) {
    if (peer != except) {
      after(Duration(random_.between(1000, 5000)), peer,
            [member = members_[peer], failed_rank, why] { member->break_here(failed_rank, why); });
    }
  }
}

}  // namespace tandem
