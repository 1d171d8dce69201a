#include "actors/collectives/nccl/shm_nccl_peers.hpp"

#include <array>
#include <atomic>
#include <new>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

// Only its rank writes it. Counters only grow; a rank that sees a value also sees everything that
// was written before it.
struct ShmNcclPeers::Page {
  alignas(64) std::atomic<std::uint64_t> begun{0};
  alignas(64) std::atomic<std::uint64_t> decided{
      0};  // turns; the launch of turn t lies at t % kMostAhead
  std::array<NcclLaunch, kMostAhead> launches;
  // Turns begun by ranks of other hosts with this local rank, by number among all.
  std::array<std::atomic<std::uint64_t>, ShmControl::kRanksMax> begun_elsewhere{};
};

namespace {
constexpr std::size_t kPage = 4096;
constexpr std::size_t kControlBytes = (sizeof(ShmControl) + kPage - 1) / kPage * kPage;
}  // namespace

std::unique_ptr<ShmNcclPeers> ShmNcclPeers::connect(EventLoop& loop, const Options& options) {
  static_assert(std::is_standard_layout_v<Page>);
  auto arena = std::make_unique<ShmArena>(kControlBytes + sizeof(Page) + kPage);
  auto* const control = new (arena->allocate(kControlBytes)) ShmControl();
  std::byte* const memory = arena->allocate(sizeof(Page));
  TANDEM_CHECK(memory == reinterpret_cast<std::byte*>(control) + kControlBytes,
               "peers find the page behind the control block");
  auto* const page = new (memory) Page();
  std::vector<ShmPeer> peers = bootstrap_shm({.rank = options.rank,
                                              .world = options.world,
                                              .first_rank = options.first_rank,
                                              .job = options.job,
                                              .timeout = options.connect_timeout},
                                             *arena);
  peers[options.rank].memory = arena->shared_mapping();
  for (const ShmPeer& peer : peers) {
    if (peer.memory->size_bytes() < kControlBytes + sizeof(Page)) {
      throw failure(ExitCode::kPeer, "nccl",
                    "a peer's memory has {} bytes; run the same version on all ranks",
                    peer.memory->size_bytes());
    }
  }
  return std::unique_ptr<ShmNcclPeers>(
      new ShmNcclPeers(loop, std::move(arena), *control, *page, std::move(peers), options));
}

ShmNcclPeers::ShmNcclPeers(EventLoop& loop, std::unique_ptr<ShmArena> arena, ShmControl& control,
                           Page& page, std::vector<ShmPeer> peers, const Options& options)
    : arena_(std::move(arena)),
      group_waits_(options.group_waits),
      sync_(loop, control, std::move(peers),
            {.rank = options.rank,
             .first_rank = options.first_rank,
             .all_ranks = options.all_ranks,
             .outside_ranks = options.outside_ranks,
             .run_waits = options.run_waits,
             .group_waits = options.group_waits,
             .heartbeat = options.heartbeat}),
      own_(page) {
  sync_.watch_sockets();
}

const ShmNcclPeers::Page& ShmNcclPeers::page_of(std::uint32_t rank) const noexcept {
  return *reinterpret_cast<const Page*>(sync_.memory_of(rank) + kControlBytes);
}

void ShmNcclPeers::decide(std::uint64_t turn, const NcclLaunch& launch) noexcept {
  own_.launches[turn % kMostAhead] = launch;
  own_.decided.store(turn + 1, std::memory_order_release);
}

std::optional<NcclLaunch> ShmNcclPeers::decided(std::uint64_t turn) noexcept {
  const Page& of_first = page_of(0);
  if (of_first.decided.load(std::memory_order_acquire) <= turn) {
    return std::nullopt;
  }
  return of_first.launches[turn % kMostAhead];
}

void ShmNcclPeers::has_begun(std::uint64_t turn) noexcept {
  own_.begun.store(turn, std::memory_order_release);
}

std::uint64_t ShmNcclPeers::begun(std::uint32_t rank) const noexcept {
  const std::uint32_t local = rank - sync_.name_of(0);
  return local < sync_.world()
             ? page_of(local).begun.load(std::memory_order_acquire)
             : page_of(rank % sync_.world()).begun_elsewhere[rank].load(std::memory_order_acquire);
}

void ShmNcclPeers::has_received(std::uint32_t rank, std::uint64_t begun) noexcept {
  own_.begun_elsewhere[rank].store(begun, std::memory_order_release);
}

void ShmNcclPeers::announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept {
  sync_.fail(failed_rank, cause);
}

NcclLoss ShmNcclPeers::failed_behind(std::uint32_t awaited) const {
  const std::uint32_t own = sync_.name_of(rank());
  const EndOfWaits end =
      group_waits_ ? group_waits_->end_of(own, awaited)
                   : end_of_waits(own, awaited, sync_.name_of(0) + world(),
                                  [this](std::uint32_t name) { return sync_.awaited(name); });
  if (end.rank == awaited || end.rank == own) {
    return {awaited, ""};
  }
  return {end.rank, fmt::format("; it waits for rank {} in the end", end.rank)};
}

// A rank that left before a turn that others have begun has failed.
std::optional<NcclLoss> ShmNcclPeers::loss() noexcept {
  if (sync_.is_broken()) {
    return NcclLoss{sync_.broken()->failed_rank, sync_.broken()->cause};
  }
  const std::uint64_t begun = own_.begun.load(std::memory_order_relaxed);
  for (std::uint32_t rank = 0; rank < sync_.world(); ++rank) {
    if (rank != sync_.rank() && sync_.has_ended(rank) &&
        page_of(rank).begun.load(std::memory_order_acquire) < begun) {
      return NcclLoss{sync_.name_of(rank), fmt::format("rank {} has left", sync_.name_of(rank))};
    }
  }
  return std::nullopt;
}

}  // namespace tandem
