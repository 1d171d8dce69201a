#include "engine/distributed/backend_choice.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "engine/distributed/hello.hpp"
#include "runtime/util/check.hpp"
#include "runtime/util/error.hpp"

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

struct Pair {
  std::size_t first;
  std::size_t second;
};

std::optional<Pair> that_share_a_gpu(std::span<const RankPlace> places) {
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> owners;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const auto [owner, is_new] = owners.try_emplace({places[rank].host, places[rank].gpu}, rank);
    if (!is_new) {
      return Pair{owner->second, rank};
    }
  }
  return std::nullopt;
}

}  // namespace

void require_one_host(std::span<const std::string> hosts) {
  const auto other =
      std::ranges::find_if(hosts, [&](const std::string& host) { return host != hosts.front(); });
  if (other != hosts.end()) {
    throw user_error("ranks",
                     "rank 0 is on host {}, rank {} on host {} (or in another container); "
                     "collectives need all ranks on one host",
                     name_of_host(hosts.front()), other - hosts.begin(), name_of_host(*other));
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
  const auto elsewhere = first_other(places, [](const RankPlace& place) { return place.host; });
  if (on_gpus) {
    if (places.size() == 1) {
      return BackendKind::kStaged;  // copy engines move it, and no kernel has to
    }
    const std::optional<Pair> sharing = that_share_a_gpu(places);
    if (!sharing) {
      return BackendKind::kNccl;
    }
    if (elsewhere) {
      throw user_error(
          "ranks",
          "ranks {} and {} share a GPU while rank {} is on another host, {}; give each "
          "rank a GPU of its own",
          sharing->first, sharing->second, *elsewhere, name_of_host(places[*elsewhere].host));
    }
    return BackendKind::kStaged;
  }
  std::vector<std::string> hosts;
  for (const RankPlace& place : places) {
    hosts.emplace_back(place.host);
  }
  require_one_host(hosts);
  return places.size() == 1 ? BackendKind::kSelf : BackendKind::kShm;
}

}  // namespace tandem
