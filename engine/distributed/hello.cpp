#include "engine/distributed/hello.hpp"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "engine/types/version.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

/// Equal for processes that can share memory: the same kernel, the same network namespace; then the
/// host's name.
std::string own_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  (void)!::readlink("/proc/self/ns/net", space, sizeof(space) - 1);
  char name[256] = {};
  (void)::gethostname(name, sizeof(name) - 1);
  return fmt::format("{} {} {}", boot, space, name);
}

/// The first word, which is taken off.
std::string_view word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view first = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return first;
}

struct Words {
  std::string_view world;
  std::string_view version;
  std::string_view host;
  explicit Words(std::string_view hello) : world(word(hello)), version(word(hello)), host(hello) {}
};

std::string named(std::size_t rank, std::string_view host, bool hosts_are_several) {
  return hosts_are_several ? fmt::format("rank {} (on host {})", rank, one_line(name_of_host(host)))
                           : fmt::format("rank {}", rank);
}

}  // namespace

std::string own_hello(int world) { return fmt::format("{} {} {}", world, version(), own_host()); }

// With different world sizes no rank knows how many others to wait for.
void require_fit(std::size_t rank, std::string_view mine, std::size_t other,
                 std::string_view others) {
  const Words own(mine);
  const Words its(others);
  const auto check = [&](std::string_view what, std::string_view of_own, std::string_view of_its) {
    if (of_own != of_its) {
      const bool apart = own.host != its.host;
      throw failure(ExitCode::kPeer, "rendezvous",
                    "the {} differs: {} has {}, {} has {}; start "
                    "all ranks alike",
                    what, named(other, its.host, apart), one_line(of_its),
                    named(rank, own.host, apart), of_own);
    }
  };
  check("world size", own.world, its.world);
  check("version of Tandem", own.version, its.version);
}

std::string_view host_of(std::string_view hello) { return Words(hello).host; }

std::string rank_on_host(std::size_t rank, std::span<const std::string> hosts) {
  return named(rank, hosts[rank], std::ranges::any_of(hosts, [&](const std::string& host) {
                 return host != hosts.front();
               }));
}

std::vector<std::string> distinct_names(std::span<const std::string> hosts) {
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto first = std::ranges::find(hosts, hosts[rank]) - hosts.begin();
    if (static_cast<std::size_t>(first) < rank) {
      names.push_back(names[static_cast<std::size_t>(first)]);
      continue;
    }
    const std::string name = one_line(name_of_host(hosts[rank]));
    std::string distinct = name;
    for (int number = 2; std::ranges::find(names, distinct) != names.end(); ++number) {
      distinct = fmt::format("{}#{}", name, number);
    }
    names.push_back(std::move(distinct));
  }
  return names;
}

std::string_view name_of_host(std::string_view host) noexcept {
  return host.substr(host.find_last_of(' ') + 1);
}

}  // namespace tandem
