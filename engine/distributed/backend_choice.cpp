#include "engine/distributed/backend_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/distributed/hello.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

/// The lowest rank that differs from rank 0 in `what`.
template <class What>
std::optional<std::size_t> first_other(std::span<const RankPlace> places, What what) {
  const auto other = std::ranges::find_if(
      places, [&](const RankPlace& place) { return what(place) != what(places.front()); });
  return other == places.end() ? std::nullopt
                               : std::optional(static_cast<std::size_t>(other - places.begin()));
}

bool share_a_gpu(std::span<const RankPlace> places) {
  std::set<std::pair<std::string_view, std::string_view>> taken;
  return !std::ranges::all_of(
      places, [&](const RankPlace& place) { return taken.insert({place.host, place.gpu}).second; });
}

std::size_t per_host_of(std::span<const RankPlace> places) {
  std::vector<std::string> hosts;
  for (const RankPlace& place : places) {
    hosts.emplace_back(place.host);
  }
  std::vector<int> ranks(places.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return static_cast<std::size_t>(ranks_per_host(hosts, ranks));
}

}  // namespace

int ranks_per_host(std::span<const std::string> hosts, std::span<const int> ranks) {
  TANDEM_CHECK(!hosts.empty() && hosts.size() == ranks.size(), "each rank has a host");
  std::set<std::string_view> seen;
  std::string places;
  std::size_t least = hosts.size();
  std::size_t most = 0;
  bool are_neighbours = true;
  for (std::size_t begin = 0, end = 0; begin < hosts.size(); begin = end) {
    while (end < hosts.size() && hosts[end] == hosts[begin]) {
      ++end;
    }
    are_neighbours = seen.insert(hosts[begin]).second && are_neighbours;
    least = std::min(least, end - begin);
    most = std::max(most, end - begin);
    const std::string numbers = end - begin == 1
                                    ? fmt::format("rank {}", ranks[begin])
                                    : fmt::format("ranks {} to {}", ranks[begin], ranks[end - 1]);
    constexpr std::size_t kMostBytes = 300;
    if (places.size() < kMostBytes) {
      places += fmt::format("{}{} on host {}", begin == 0 ? "" : ", ", numbers,
                            one_line(name_of_host(hosts[begin])));
    }
  }
  if (least != most || !are_neighbours) {
    throw user_error("ranks",
                     "{}; every host needs as many ranks as the others, with neighbouring numbers",
                     places);
  }
  return static_cast<int>(most);
}

void require_order(ReductionOrder order, BackendKind kind, int world) {
  if (order == ReductionOrder::kNccl && kind != BackendKind::kNccl && world > 1) {
    throw user_error(
        "ranks",
        "--reduction nccl is for ranks with a GPU of their own each, and these {}; use "
        "exact or fast",
        kind == BackendKind::kStaged ? "share GPUs" : "compute on the CPU");
  }
}

BackendKind choose_backend(std::span<const RankPlace> places) {
  TANDEM_CHECK(!places.empty(), "a run has a rank");
  const bool on_gpus = !places.front().gpu.empty();
  if (const auto other =
          first_other(places, [](const RankPlace& place) { return place.gpu.empty(); })) {
    throw user_error("ranks",
                     "rank {} computes on a GPU, rank {} on the CPU; give every rank a GPU, or use "
                     "device cpu",
                     on_gpus ? 0 : *other, on_gpus ? *other : 0);
  }
  if (on_gpus) {
    if (places.size() == 1) {
      return BackendKind::kStaged;  // copy engines move it, and no kernel has to
    }
    (void)per_host_of(places);
    return share_a_gpu(places) ? BackendKind::kStaged : BackendKind::kNccl;
  }
  if (places.size() == 1) {
    return BackendKind::kSelf;
  }
  return per_host_of(places) == places.size() ? BackendKind::kShm : BackendKind::kHosts;
}

}  // namespace tandem
