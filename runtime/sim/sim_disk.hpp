// runtime/sim/sim_disk.hpp — a disk in memory with files, folders and power cuts.
//
// It outlives ranks and crashes. Data that was fsynced stays (a file's bytes by fsync, a folder's
// entries by fsync_folder). A power cut keeps any part of the rest: each change of a folder's
// entries (a rename or an exchange within one folder is one change) and each sector of a file by
// itself. Calls return what the system's calls do: 0 or more, or -errno.
// Thread rule: the world's thread.
//
//   SimDisk disk({.capacity_bytes = 1 << 20});
//   disk.put("run/state", bytes);
//   SimDisk found = disk.after_power_cut([&](const SimDisk::Piece&) { return random.chance(0.5);
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/io/file_backend.hpp"
#include "runtime/util/random.hpp"

namespace tandem {

class SimDisk {
 public:
  struct Options {
    std::uint64_t capacity_bytes = UINT64_MAX;
  };
  struct Node;
  using Entries = std::map<std::string, std::shared_ptr<Node>>;
  /// A change of a folder's entries, which survives as a whole or not at all: a name goes; names
  /// come, or get another node.
  struct Change {
    std::string gone;
    std::vector<std::pair<std::string, std::shared_ptr<Node>>> come = {};
  };
  /// A file or a folder.
  struct Node {
    bool is_folder = false;
    std::vector<std::byte> bytes;
    std::vector<std::byte> synced;  // what a power cut keeps for certain
    bool sync_failed = false;       // the written data are dropped: no later fsync saves them
    Entries entries;
    Entries synced_entries;
    std::vector<Change> changes;  // since they were synced
  };

  /// One change that is not synced: a change of a folder's entries, in the order of the calls, or a
  /// sector of a file (kTruncation: the file became shorter).
  struct Piece {
    std::string path;
    bool is_entry;
    std::uint64_t number;
  };
  static constexpr std::uint64_t kTruncation = UINT64_MAX;
  using Survives = std::function<bool(const Piece&)>;

  SimDisk() : SimDisk(Options()) {}
  explicit SimDisk(Options options) : options_(options) { root_->is_folder = true; }

  /// Returns the disk as it is found after a power cut at this moment. Asks about each piece once,
  /// folders before their contents.
  [[nodiscard]] SimDisk after_power_cut(const Survives& survives) const;
  /// Cuts the power and restores it; each piece survives with probability 1/2.
  void crash(Random& random);
  void set_capacity(std::uint64_t bytes) noexcept { options_.capacity_bytes = bytes; }
  /// Called after each call that changed something.
  void on_change(std::function<void()> listener) { listener_ = std::move(listener); }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept;
  /// The file's bytes; null if there is none of that name.
  [[nodiscard]] const std::vector<std::byte>* find(const std::string& path) const;
  /// Puts a whole file, or a folder, there with the folders that it lies in, all synced.
  void put(const std::string& path, std::vector<std::byte> bytes);
  void put_folder(const std::string& path);

  // The system's calls.
  [[nodiscard]] std::int64_t open(const std::string& path, OpenMode mode,
                                  std::shared_ptr<Node>& file);
  [[nodiscard]] std::int64_t read(const Node& file, std::uint64_t offset, std::byte* into,
                                  std::size_t bytes) const;
  /// Writes what fits; ENOSPC if nothing does.
  [[nodiscard]] std::int64_t write(Node& file, std::uint64_t offset, const std::byte* from,
                                   std::size_t bytes);
  [[nodiscard]] std::int64_t reserve(Node& file, std::uint64_t bytes);
  /// With `fails` it returns -EIO, and the dirty data are dropped.
  std::int64_t fsync(Node& file, bool fails);
  [[nodiscard]] std::int64_t fsync_folder(const std::string& path);
  [[nodiscard]] std::int64_t rename(const std::string& from, const std::string& to);
  /// Exchanges two names in one folder.
  [[nodiscard]] std::int64_t exchange(const std::string& one, const std::string& other);
  [[nodiscard]] std::int64_t remove(const std::string& path, bool folder);
  /// Removes one name after the other, each as a change of its own.
  [[nodiscard]] std::int64_t remove_tree(const std::string& path);
  [[nodiscard]] std::int64_t make_folder(const std::string& path);
  [[nodiscard]] std::int64_t list_folder(const std::string& path,
                                         std::vector<std::string>& names) const;
  [[nodiscard]] std::uint64_t free_bytes() const noexcept;

 private:
  [[nodiscard]] std::shared_ptr<Node> node_at(std::string_view path) const;
  /// Returns the folder that `path` lies in (null if there is none) and the path's last name.
  [[nodiscard]] std::pair<std::shared_ptr<Node>, std::string> place_of(std::string_view path) const;
  void changed() const;

  Options options_;
  std::shared_ptr<Node> root_ = std::make_shared<Node>();
  std::function<void()> listener_;
};

}  // namespace tandem
