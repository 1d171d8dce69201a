#include "engine/checkpoint/disks.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "engine/distributed/communicator.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// A file that is gone with the object.
class Mark {
 public:
  Mark() = default;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  ~Mark() {
    if (!path_.empty()) {
      (void)reach::remove(path_);
    }
  }

  /// Its name; empty where nothing can be written.
  std::string put_into(const fs::path& folder) {
    // As a file that is_abandoned_file(): a killed rank leaves it.
    std::string name = ".tandem.tmp-" + fresh_nonce();
    const std::string path = folder / name;
    const int file = reach::open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0) {
      return "";
    }
    ::close(file);
    path_ = path;
    return name;
  }

 private:
  std::string path_;
};

fs::path nearest_folder(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error);
  while (!fs::is_directory(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path;
}

bool is_there(const fs::path& folder, const std::string& name) {
  std::error_code error;
  // A network file system asks its server anew about a folder that is opened.
  (void)fs::directory_iterator(folder, error);
  return fs::exists(folder / name, error);
}

Disks numbered(const std::vector<std::uint32_t>& leaders, const std::vector<std::string>& hosts) {
  Disks disks;
  std::vector<std::uint32_t> seen;  // [disk] its leader
  for (const std::uint32_t leader : leaders) {
    const auto found = std::ranges::find(seen, leader);
    disks.of_rank.push_back(static_cast<std::uint32_t>(found - seen.begin()));
    if (found == seen.end()) {
      seen.push_back(leader);
      disks.hosts.push_back(hosts[disks.of_rank.size() - 1]);
    }
  }
  return disks;
}

Task<std::vector<std::string>> ask(Communicator* ranks, std::string mine) {
  co_return ranks->of_all_ranks(std::move(mine));
}

}  // namespace

Disks Disks::shared(std::size_t world) {
  return {.of_rank = std::vector<std::uint32_t>(world), .hosts = {""}};
}

std::vector<std::uint32_t> Disks::ranks_of(std::uint32_t disk) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < of_rank.size(); ++rank) {
    if (of_rank[rank] == disk) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::uint32_t Disks::first_rank_of(std::uint32_t disk) const {
  const auto found = std::ranges::find(of_rank, disk);
  TANDEM_CHECK(found != of_rank.end(), "a disk has ranks");
  return static_cast<std::uint32_t>(found - of_rank.begin());
}

Task<Disks> find_disks(TextExchange exchange, std::vector<std::string> hosts, std::size_t rank,
                       std::size_t world, std::string folder) {
  if (hosts.empty()) {
    co_return Disks::shared(world);
  }
  const auto first_of = [&](const std::string& host) {
    return static_cast<std::size_t>(std::ranges::find(hosts, host) - hosts.begin());
  };
  Mark mark;
  const fs::path nearest = nearest_folder(folder);
  const bool is_first = first_of(hosts[rank]) == rank;
  const std::vector<std::string> marks =
      co_await exchange(is_first ? mark.put_into(nearest) : std::string());
  const auto found = std::ranges::find_if(
      marks, [&](const std::string& name) { return !name.empty() && is_there(nearest, name); });
  const std::size_t leader = found != marks.end() ? static_cast<std::size_t>(found - marks.begin())
                                                  : first_of(hosts[rank]);
  std::vector<std::uint32_t> leaders;  // when they are there, every rank has looked
  for (const std::string& one : co_await exchange(std::to_string(leader))) {
    leaders.push_back(static_cast<std::uint32_t>(std::stoul(one)));
  }
  Disks disks = numbered(leaders, hosts);
  co_return disks.are_several() ? std::move(disks) : Disks::shared(world);
}

Disks find_disks(Communicator& ranks, const std::string& folder) {
  EventLoop loop({.name = "disks"});
  const auto run = [](Communicator* all, std::string path) {
    return find_disks([all](std::string mine) { return ask(all, std::move(mine)); }, all->hosts(),
                      static_cast<std::size_t>(all->rank()),
                      static_cast<std::size_t>(all->world_size()), std::move(path));
  };
  return loop.run(run, &ranks, folder);
}

}  // namespace tandem
