#include "engine/distributed/process_group.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <sstream>

#include <fmt/ranges.h>

#include "actors/collectives/group_backend.hpp"
#include "actors/collectives/nccl/joined_nccl_peers.hpp"
#include "actors/collectives/nccl/nccl_backend.hpp"
#include "actors/collectives/nccl/shm_nccl_peers.hpp"
#include "actors/collectives/secret.hpp"
#include "actors/collectives/shm/shm_backend.hpp"
#include "actors/collectives/staged_backend.hpp"
#include "engine/distributed/group_members.hpp"
#include "engine/distributed/hello.hpp"
#include "engine/distributed/joined_hosts.hpp"
#include "engine/distributed/rendezvous_store.hpp"
#include "runtime/flight.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/ucx/ucx_net.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/seconds_setting.hpp"

namespace tandem {
namespace {

/// The part around the first difference from `other`, short enough for a line.
std::string excerpt(std::string_view value, std::string_view other) {
  constexpr std::size_t kBefore = 40;
  constexpr std::size_t kMost = 160;
  const auto differs =
      static_cast<std::size_t>(std::ranges::mismatch(value, other).in1 - value.begin());
  const std::size_t begin = value.size() <= kMost ? 0 : differs - std::min(differs, kBefore);
  std::string text(value.substr(begin, kMost));
  std::ranges::replace(text, '\n', ' ');
  return fmt::format("{}{}{}", begin > 0 ? "..." : "", text,
                     begin + kMost < value.size() ? "..." : "");
}

}  // namespace

class ProcessGroup::Store : public RendezvousStore {
  using RendezvousStore::RendezvousStore;
};

std::unique_ptr<ProcessGroup> ProcessGroup::from_environment(ReductionOrder order) {
  const auto timeout = seconds_setting("TANDEM_RENDEZVOUS_TIMEOUT_S", std::chrono::seconds(300));
  // Said before the ranks meet where they cannot be.
  (void)ShmBackend::default_timeout();
  (void)ShmBackend::default_heartbeat();
  return join(parse_environment(process_variables()),
              std::chrono::ceil<std::chrono::milliseconds>(timeout), order);
}

std::unique_ptr<ProcessGroup> ProcessGroup::join(const Environment& environment,
                                                 std::chrono::milliseconds timeout,
                                                 ReductionOrder order) {
  std::unique_ptr<ProcessGroup> group(new ProcessGroup(environment, timeout, order));
  if (environment.world > 1) {
    const flight::Span meeting(flight::Kind::kMeet);
    group->meet();
  }
  return group;
}

ProcessGroup::ProcessGroup(const Environment& environment, std::chrono::milliseconds timeout,
                           ReductionOrder order)
    : environment_(environment),
      timeout_(timeout),
      order_(order),
      run_waits_(std::make_shared<RunWaits>()) {}

ProcessGroup::~ProcessGroup() = default;

void ProcessGroup::meet() {
  store_ = std::make_unique<Store>(environment_, timeout_);
  if (store_->count(fmt::format("came/{}", rank())) > 1) {
    throw failure(ExitCode::kPeer, "rendezvous",
                  "rank {} is there twice; give each process a rank of its own", rank());
  }
  if (rank() == 0) {
    store_->set("job", Secret::random_text());
  }
  // Out before anything is compared, so that the others learn of a difference, too.
  const auto me = static_cast<std::size_t>(rank());
  const std::string own = own_hello(world_size());
  store_->set(fmt::format("hello/{}", me), own);
  require_fit(me, own, 0, store_->get("hello/0", 0));
  const std::vector<std::string> hellos = store_->all("hello", own);
  for (std::size_t other = 0; other < hellos.size(); ++other) {
    require_fit(me, own, other, hellos[other]);
    hosts_.emplace_back(host_of(hellos[other]));
  }
  if (std::ranges::count(hosts_, hosts_.front()) < world_size()) {
    (void)ucx_support();  // it sets variables, which other threads may read later on
  }
  // So does this, by which NCCL's own meeting listens where this one did, and nowhere else.
  if (const std::string interface = meeting_interface(environment_); !interface.empty()) {
    (void)::setenv("NCCL_SOCKET_IFNAME", fmt::format("={}", interface).c_str(), 0);
  }
  // The name of one run in shared memory is known to its ranks alone, even where the store's
  // connections could be read.
  job_ = store_->derive_secret("job", store_->get("job", 0));
  compare_cores();
  store_->leave_together("met");
  store_->close_to_strangers();
}

void ProcessGroup::compare_cores() {
  std::vector<int> mine = machine::affinity();
  std::ranges::sort(mine);
  const std::vector<std::string> masks =
      store_->all("cpus", fmt::format("{}", fmt::join(mine, " ")));
  cores_shared_by_ = 0;
  for (std::size_t other = 0; other < masks.size(); ++other) {
    std::istringstream words(masks[other]);
    const bool meets = std::any_of(std::istream_iterator<int>(words), std::istream_iterator<int>(),
                                   [&](int cpu) { return std::ranges::binary_search(mine, cpu); });
    const auto me = static_cast<std::size_t>(rank());
    if (other == me || (meets && hosts_[other] == hosts_[me])) {
      place_on_cores_ += other < me ? 1 : 0;
      ++cores_shared_by_;
    }
  }
}

void ProcessGroup::require_same(std::string_view what, std::string_view value) {
  if (store_ == nullptr) {
    return;
  }
  const std::string key = fmt::format("same/{}", questions_++);
  const std::vector<std::string> values = store_->all(key, fmt::format("{}\n{}", what, value));
  store_->leave_together(key + "/read");
  throw_first_difference(what, values);
}

std::vector<std::string> ProcessGroup::of_all_ranks(std::string value) {
  if (store_ == nullptr) {
    return {std::move(value)};
  }
  const std::string key = fmt::format("all/{}", questions_++);
  std::vector<std::string> values = store_->all(key, value);
  store_->leave_together(key + "/read");
  return values;
}

std::vector<std::string> ProcessGroup::hosts() const {
  const bool several =
      std::ranges::adjacent_find(hosts_, std::ranges::not_equal_to()) != hosts_.end();
  return several ? distinct_names(hosts_) : std::vector<std::string>();
}

// The same two ranks on every rank, so that all of them print the same line.
void ProcessGroup::throw_first_difference(std::string_view what,
                                          const std::vector<std::string>& values) const {
  const auto other = std::ranges::find_if(
      values, [&](const std::string& value) { return value != values.front(); });
  if (other == values.end()) {
    return;
  }
  const std::string_view first = values.front();
  const std::string_view second = *other;
  const auto asked = [](std::string_view value) { return value.substr(0, value.find('\n')); };
  const auto answer = [](std::string_view value) { return value.substr(value.find('\n') + 1); };
  const auto differing = static_cast<std::size_t>(other - values.begin());
  if (asked(first) != asked(second)) {
    throw failure(ExitCode::kPeer, "ranks", "{} compares its {}, {} its {}; start all ranks alike",
                  rank_on_host(0, hosts_), asked(first), rank_on_host(differing, hosts_),
                  asked(second));
  }
  throw failure(ExitCode::kPeer, "ranks",
                "the {} differs: {} has {}, {} has {}; start all ranks alike", what,
                rank_on_host(0, hosts_), excerpt(answer(first), answer(second)),
                rank_on_host(differing, hosts_), excerpt(answer(second), answer(first)));
}

std::vector<RankPlace> ProcessGroup::places(std::string_view gpu) {
  std::vector<RankPlace> all;
  if (store_ == nullptr) {
    all.push_back({"", std::string(gpu)});
    return all;
  }
  const std::vector<std::string> of_all = store_->all("gpu", gpu);
  store_->leave_together("gpu/read");
  for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
    all.push_back({hosts_[rank], of_all[rank]});
  }
  return all;
}

BackendKind ProcessGroup::choose_kind(std::string_view gpu) {
  if (kind_) {
    throw user_error("ranks",
                     "a process group was given to a second engine; make one for each engine, one "
                     "after the other on all ranks");
  }
  require_same("reduction order", name_of(order_));
  kind_ = choose_backend(places(gpu));
  require_order(order_, *kind_, world_size());
  return *kind_;
}

std::unique_ptr<CollectiveBackend> ProcessGroup::make_backend(EventLoop& loop, CpuPool& pool) {
  if (choose_kind("") == BackendKind::kSelf) {
    return std::make_unique<SelfBackend>(pool);
  }
  return make_for_host(loop, pool, all_ranks());
}

std::unique_ptr<CollectiveBackend> ProcessGroup::make_gpu_backend(EventLoop& loop, CpuPool& pool,
                                                                  CudaDevice& gpu,
                                                                  std::string_view uuid) {
  if (choose_kind(uuid) == BackendKind::kNccl) {
    return make_nccl(loop, gpu, all_ranks());
  }
  if (world_size() == 1) {
    return std::make_unique<StagedBackend>(gpu, std::make_unique<SelfBackend>(pool));
  }
  return std::make_unique<StagedBackend>(gpu, make_for_host(loop, pool, all_ranks()));
}

ProcessGroup::Members ProcessGroup::all_ranks() const {
  Members all{.name = "",
              .ranks = std::vector<int>(static_cast<std::size_t>(world_size())),
              .run_waits = run_waits_};
  std::iota(all.ranks.begin(), all.ranks.end(), 0);
  return all;
}

ProcessGroup::Members ProcessGroup::members(const RankGroup& group) {
  Members members{.name = group.name, .ranks = members_of(*this, group)};
  members.group_waits = std::make_shared<GroupWaits>(
      run_waits_, std::vector<std::uint32_t>(members.ranks.begin(), members.ranks.end()));
  return members;
}

std::unique_ptr<CollectiveBackend> ProcessGroup::make_group_backend(EventLoop& loop, CpuPool& pool,
                                                                    const RankGroup& group) {
  const Members of_group = members(group);
  return std::make_unique<GroupBackend>(make_for_host(loop, pool, of_group), of_group.group_waits);
}

std::unique_ptr<CollectiveBackend> ProcessGroup::make_gpu_group_backend(EventLoop& loop,
                                                                        CudaDevice& gpu,
                                                                        const RankGroup& group) {
  if (kind_ != BackendKind::kNccl || !orders_by_beginnings(gpu)) {
    return nullptr;
  }
  const Members of_group = members(group);
  try {
    return std::make_unique<GroupBackend>(make_nccl(loop, gpu, of_group), of_group.group_waits);
  } catch (const PeerLost& lost) {
    const PeerLost in_run = lost_in_run(*of_group.group_waits, lost);
    if (in_run.rank() != kUnknownRank) {
      flight::blame(in_run.rank());
    }
    throw in_run;
  }
}

// With an older driver on any rank NCCL would let a kernel end before the next one begins, which a
// launch in no order with the others must not wait for.
bool ProcessGroup::orders_by_beginnings(const CudaDevice& gpu) {
  constexpr int kLeast = 12030;
  int version = 0;
  (void)gpu.api().driver_version(&version);
  const std::vector<std::string> versions = of_all_ranks(std::to_string(version));
  return std::ranges::all_of(versions,
                             [](const std::string& of) { return std::stoi(of) >= kLeast; });
}

template <class Connect>
auto ProcessGroup::blaming(const Members& members, std::size_t first, Connect connect) {
  try {
    return connect();
  } catch (const PeerLost& lost) {
    if (const std::size_t member = first + lost.rank(); member < members.ranks.size()) {
      flight::blame(static_cast<std::uint64_t>(members.ranks[member]));
    }
    throw;
  }
}

std::unique_ptr<CollectiveBackend> ProcessGroup::make_for_host(EventLoop& loop, CpuPool& pool,
                                                               const Members& members) {
  const std::size_t count = members.ranks.size();
  if (count == 1) {
    return std::make_unique<SelfBackend>(pool);
  }
  const int per_host = ranks_per_host(hosts_of(members), members.ranks);
  const int own = place_in(members);
  if (static_cast<std::size_t>(per_host) < count) {
    return join_hosts(loop, pool, members, own, per_host);
  }
  return blaming(members, 0, [&] {
    return ShmBackend::connect(loop, pool,
                               {.rank = static_cast<std::uint32_t>(own),
                                .world = static_cast<std::uint32_t>(count),
                                .job = members.name.empty() ? job_ : job_ + "-" + members.name,
                                .outside_ranks = outside_ranks(members),
                                .run_waits = members.run_waits,
                                .group_waits = members.group_waits,
                                .connect_timeout = timeout_});
  });
}

/// That a failure may name besides the members (GroupBackend).
std::uint32_t ProcessGroup::outside_ranks(const Members& members) const noexcept {
  return members.name.empty() ? 0 : static_cast<std::uint32_t>(world_size());
}

std::vector<std::string> ProcessGroup::hosts_of(const Members& members) const {
  std::vector<std::string> hosts;
  hosts.reserve(members.ranks.size());
  for (const int member : members.ranks) {
    hosts.push_back(hosts_[static_cast<std::size_t>(member)]);
  }
  return hosts;
}

int ProcessGroup::place_in(const Members& members) const {
  return static_cast<int>(std::ranges::find(members.ranks, rank()) - members.ranks.begin());
}

template <class Options>
Options ProcessGroup::over_hosts(const Members& members, int per_host) const {
  Options options;
  options.waits.timeout = ShmBackend::default_timeout();
  options.waits.heartbeat = ShmBackend::default_heartbeat();
  options.waits.group_waits = members.group_waits;
  const std::vector<std::string> names = distinct_names(hosts_);
  for (std::size_t first = 0; first < members.ranks.size();
       first += static_cast<std::size_t>(per_host)) {
    options.waits.host_names.push_back(names[static_cast<std::size_t>(members.ranks[first])]);
  }
  return options;
}

std::unique_ptr<NetBackend> ProcessGroup::connect_net(EventLoop& loop, const Members& members,
                                                      int rank) {
  UcxNetOptions frames{
      .rank = static_cast<std::uint32_t>(rank),
      .world = static_cast<std::uint32_t>(members.ranks.size()),
      .run_key = static_cast<std::uint32_t>(
          std::stoul(store_->derive_secret("ucx", job_ + members.name).substr(0, 8), nullptr, 16)),
      .devices = net_devices(environment_)};
  const std::vector<std::string> names = distinct_names(hosts_);
  for (const int member : members.ranks) {
    frames.hosts.push_back(names[static_cast<std::size_t>(member)]);
  }
  frames.connect_timeout = std::min<Duration>(frames.connect_timeout, timeout_);
  const std::string key = fmt::format("ucx-{}", members.name);
  const auto exchange = [&](const std::string& mine) {
    store_->set(fmt::format("{}/{}", key, this->rank()), mine);
    std::vector<std::string> addresses;
    addresses.reserve(members.ranks.size());
    for (const int member : members.ranks) {
      addresses.push_back(store_->get(fmt::format("{}/{}", key, member), member));
    }
    return addresses;
  };
  return blaming(members, 0, [&] { return connect_ucx_net(loop, frames, exchange); });
}

std::unique_ptr<CollectiveBackend> ProcessGroup::join_hosts(EventLoop& loop, CpuPool& pool,
                                                            const Members& members, int rank,
                                                            int per_host) {
  const int host = rank / per_host;
  const auto world = static_cast<std::uint32_t>(members.ranks.size());
  const std::string job = fmt::format("{}-{}-host-{}", job_, members.name, host);
  const auto first = static_cast<std::size_t>(host) * static_cast<std::size_t>(per_host);
  auto memory = blaming(members, first, [&] {
    return ShmBackend::connect(loop, pool,
                               {.rank = static_cast<std::uint32_t>(rank % per_host),
                                .world = static_cast<std::uint32_t>(per_host),
                                .job = job,
                                .first_rank = static_cast<std::uint32_t>(first),
                                .all_ranks = world,
                                .outside_ranks = outside_ranks(members),
                                .run_waits = members.run_waits,
                                .group_waits = members.group_waits,
                                .connect_timeout = timeout_});
  });
  auto net = connect_net(loop, members, rank);
  // Both ends of a channel cut pieces alike, whatever devices each has.
  std::size_t frame_bytes = HostsBackend::Options().piece_bytes;
  const std::string frame_key = fmt::format("frames-{}", members.name);
  store_->set(fmt::format("{}/{}", frame_key, this->rank()),
              std::to_string(frame_bytes_for(net_devices(environment_))));
  for (const int member : members.ranks) {
    const std::string theirs = store_->get(fmt::format("{}/{}", frame_key, member), member);
    frame_bytes = std::min<std::size_t>(frame_bytes, std::stoul(theirs));
  }
  auto options = over_hosts<HostsBackend::Options>(members, per_host);
  options.order =
      order_ == ReductionOrder::kFast ? HostsBackend::Order::kFast : HostsBackend::Order::kExact;
  options.frame_bytes = frame_bytes;
  return std::make_unique<JoinedHosts>(std::move(memory), std::move(net), pool, std::move(options));
}

// A group's gathers and exchanges; of all ranks also reductions.
std::unique_ptr<CollectiveBackend> ProcessGroup::make_nccl(EventLoop& loop, CudaDevice& device,
                                                           const Members& members) {
  const bool of_all = members.name.empty();
  NcclBackend::Options options;
  options.rank = static_cast<std::uint32_t>(place_in(members));
  options.world = static_cast<std::uint32_t>(members.ranks.size());
  options.name = of_all ? "tandem" : "tandem " + members.name;
  options.reduces = of_all;
  options.kernels = &SumKernels::load();
  options.own_sums = order_ == ReductionOrder::kNccl;
  options.connect_timeout = timeout_;
  options.timeout = ShmBackend::default_timeout();
  if (options.world > 1) {
    options.api = &NcclApi::load();
    if (of_all) {
      options.hosts = hosts();
    }
    options.peers = connect_nccl_peers(loop, members);
    options.from_rank_0 = [this, first = members.ranks.front()](std::string_view key,
                                                                const std::string& value) {
      if (rank() == first) {
        store_->set(key, value);
      }
      return store_->get(key, first);
    };
  }
  const std::shared_ptr<NcclPeers> peers = options.peers;  // they end when the loop does not run
  return loop.run(&NcclBackend::connect, &loop, &device, std::move(options));
}

// Through the host's memory, and a net where there are several hosts.
std::shared_ptr<NcclPeers> ProcessGroup::connect_nccl_peers(EventLoop& loop, Members members) {
  const std::uint32_t outside = outside_ranks(members);
  members.name = members.name.empty() ? "nccl" : "nccl-" + members.name;
  const int per_host = ranks_per_host(hosts_of(members), members.ranks);
  const int own = place_in(members);
  const int first = own / per_host * per_host;
  const auto world = static_cast<std::uint32_t>(members.ranks.size());
  auto memory = blaming(members, static_cast<std::size_t>(first), [&] {
    return ShmNcclPeers::connect(loop,
                                 {.rank = static_cast<std::uint32_t>(own - first),
                                  .world = static_cast<std::uint32_t>(per_host),
                                  .job = fmt::format("{}-{}-host-{}", job_, members.name, first),
                                  .first_rank = static_cast<std::uint32_t>(first),
                                  .all_ranks = world,
                                  .outside_ranks = outside,
                                  .run_waits = members.run_waits,
                                  .group_waits = members.group_waits,
                                  .connect_timeout = timeout_,
                                  .heartbeat = ShmBackend::default_heartbeat()});
  });
  if (static_cast<std::uint32_t>(per_host) == world) {
    return memory;
  }
  auto options = over_hosts<JoinedNcclPeers::Options>(members, per_host);
  options.outside_ranks = outside;
  return JoinedNcclPeers::make(loop, std::move(memory), connect_net(loop, members, own),
                               std::move(options));
}

}  // namespace tandem
