#include "runtime/sim/sim_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tandem {
namespace {

using Node = SimDisk::Node;

constexpr std::size_t kSectorBytes = 512;  // what a crash tears between

void apply_change(const SimDisk::Change& change, SimDisk::Entries& entries) {
  entries.erase(change.gone);
  for (const auto& [name, node] : change.come) {
    entries[name] = node;
  }
}

void change_entries(Node& folder, SimDisk::Change change) {
  apply_change(change, folder.entries);
  folder.changes.push_back(std::move(change));
}

bool sector_differs(const Node& file, std::size_t begin, std::size_t end) {
  return end > file.synced.size() ||
         std::memcmp(file.bytes.data() + begin, file.synced.data() + begin, end - begin) != 0;
}

std::vector<std::byte> surviving_bytes(const Node& file, const std::string& path,
                                       const SimDisk::Survives& survives) {
  std::vector<std::byte> kept = file.synced;
  if (file.bytes.size() < kept.size() && survives({path, false, SimDisk::kTruncation})) {
    kept.resize(file.bytes.size());
  }
  for (std::size_t begin = 0; begin < file.bytes.size(); begin += kSectorBytes) {
    const std::size_t end = std::min(begin + kSectorBytes, file.bytes.size());
    if (sector_differs(file, begin, end) && survives({path, false, begin / kSectorBytes})) {
      kept.resize(std::max(kept.size(), end));
      std::memcpy(kept.data() + begin, file.bytes.data() + begin, end - begin);
    }
  }
  return kept;
}

std::shared_ptr<Node> survivor_of(const Node& node, const std::string& path,
                                  const SimDisk::Survives& survives) {
  auto kept = std::make_shared<Node>();
  kept->is_folder = node.is_folder;
  if (!node.is_folder) {
    kept->bytes = kept->synced = surviving_bytes(node, path, survives);
    return kept;
  }
  kept->entries = node.synced_entries;
  for (std::size_t i = 0; i < node.changes.size(); ++i) {
    if (survives({path, true, i})) {
      apply_change(node.changes[i], kept->entries);
    }
  }
  for (auto& [name, child] : kept->entries) {
    child = survivor_of(*child, path.empty() ? name : path + "/" + name, survives);
  }
  kept->synced_entries = kept->entries;
  return kept;
}

std::uint64_t bytes_below(const Node& node) noexcept {
  std::uint64_t bytes = node.bytes.size();
  for (const auto& [name, child] : node.entries) {
    bytes += bytes_below(*child);
  }
  return bytes;
}

/// Takes the first name off `path`; empty at its end.
std::string_view next_name(std::string_view& path) {
  while (path.starts_with('/')) {
    path.remove_prefix(1);
  }
  const std::string_view name = path.substr(0, path.find('/'));
  path.remove_prefix(name.size());
  return name;
}

}  // namespace

SimDisk SimDisk::after_power_cut(const Survives& survives) const {
  SimDisk found(options_);
  found.root_ = survivor_of(*root_, "", survives);
  return found;
}

void SimDisk::crash(Random& random) {
  root_ = survivor_of(*root_, "", [&](const Piece&) { return random.chance(0.5); });
}

std::uint64_t SimDisk::used_bytes() const noexcept { return bytes_below(*root_); }

std::uint64_t SimDisk::free_bytes() const noexcept {
  return options_.capacity_bytes - std::min(used_bytes(), options_.capacity_bytes);
}

std::shared_ptr<Node> SimDisk::node_at(std::string_view path) const {
  std::shared_ptr<Node> node = root_;
  for (std::string_view name = next_name(path); !name.empty(); name = next_name(path)) {
    const auto found = node->entries.find(std::string(name));
    if (found == node->entries.end()) {
      return nullptr;
    }
    node = found->second;
  }
  return node;
}

std::pair<std::shared_ptr<Node>, std::string> SimDisk::place_of(std::string_view path) const {
  const std::size_t slash = path.find_last_of('/');
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  std::shared_ptr<Node> folder = node_at(path.substr(0, begin));
  if (folder != nullptr && !folder->is_folder) {
    folder = nullptr;
  }
  return {std::move(folder), std::string(path.substr(begin))};
}

void SimDisk::changed() const {
  if (listener_) {
    listener_();
  }
}

const std::vector<std::byte>* SimDisk::find(const std::string& path) const {
  const std::shared_ptr<Node> node = node_at(path);
  return node == nullptr || node->is_folder ? nullptr : &node->bytes;
}

void SimDisk::put_folder(const std::string& path) {
  std::string_view rest = path;
  std::shared_ptr<Node> folder = root_;
  for (std::string_view name = next_name(rest); !name.empty(); name = next_name(rest)) {
    std::shared_ptr<Node>& entry = folder->entries[std::string(name)];
    if (entry == nullptr) {
      entry = std::make_shared<Node>();
      entry->is_folder = true;
    }
    folder->synced_entries[std::string(name)] = entry;
    folder = entry;
  }
}

void SimDisk::put(const std::string& path, std::vector<std::byte> bytes) {
  put_folder(path.substr(0, path.find_last_of('/') + 1));
  const auto [folder, name] = place_of(path);
  auto file = std::make_shared<Node>();
  file->bytes = file->synced = std::move(bytes);
  folder->entries[name] = folder->synced_entries[name] = std::move(file);
}

std::int64_t SimDisk::open(const std::string& path, OpenMode mode, std::shared_ptr<Node>& file) {
  const auto [folder, name] = place_of(path);
  if (folder == nullptr) {
    return -ENOENT;
  }
  file = node_at(path);
  if (mode == OpenMode::kNameless) {
    return -EOPNOTSUPP;
  }
  if (file != nullptr && file->is_folder) {
    return -EISDIR;
  }
  if (file != nullptr && (mode == OpenMode::kNew || mode == OpenMode::kPrivate)) {
    return -EEXIST;
  }
  if (file == nullptr &&
      (mode == OpenMode::kRead || mode == OpenMode::kReadFile || mode == OpenMode::kUpdate)) {
    return -ENOENT;
  }
  if (file == nullptr) {
    file = std::make_shared<Node>();
    change_entries(*folder, {"", {{name, file}}});
    changed();
  } else if (mode == OpenMode::kCreate && !file->bytes.empty()) {
    file->bytes.clear();
    changed();
  }
  return 0;
}

std::int64_t SimDisk::read(const Node& file, std::uint64_t offset, std::byte* into,
                           std::size_t bytes) const {
  if (offset >= file.bytes.size()) {
    return 0;
  }
  bytes = std::min<std::size_t>(bytes, file.bytes.size() - offset);
  std::memcpy(into, file.bytes.data() + offset, bytes);
  return static_cast<std::int64_t>(bytes);
}

std::int64_t SimDisk::write(Node& file, std::uint64_t offset, const std::byte* from,
                            std::size_t bytes) {
  const std::uint64_t free = free_bytes();
  const std::uint64_t end_before = file.bytes.size();
  if (offset + bytes > end_before && offset + bytes - end_before > free) {
    const std::uint64_t last = end_before + free;
    if (last <= offset) {
      return -ENOSPC;
    }
    bytes = last - offset;
  }
  file.bytes.resize(std::max<std::uint64_t>(file.bytes.size(), offset + bytes));
  std::memcpy(file.bytes.data() + offset, from, bytes);
  changed();
  return static_cast<std::int64_t>(bytes);
}

std::int64_t SimDisk::reserve(Node& file, std::uint64_t bytes) {
  const std::uint64_t more = bytes - std::min<std::uint64_t>(bytes, file.bytes.size());
  if (more > free_bytes()) {
    return -ENOSPC;
  }
  file.bytes.resize(file.bytes.size() + more);
  changed();
  return 0;
}

std::int64_t SimDisk::fsync(Node& file, bool fails) {
  file.sync_failed |= fails;
  if (!file.sync_failed) {
    file.synced = file.bytes;
  }
  changed();
  return fails ? -EIO : 0;
}

std::int64_t SimDisk::fsync_folder(const std::string& path) {
  const std::shared_ptr<Node> folder = node_at(path);
  if (folder == nullptr) {
    return -ENOENT;
  }
  if (!folder->is_folder) {
    return -ENOTDIR;
  }
  folder->synced_entries = folder->entries;
  folder->changes.clear();
  changed();
  return 0;
}

std::int64_t SimDisk::rename(const std::string& from, const std::string& to) {
  const auto [old_folder, old_name] = place_of(from);
  const auto [new_folder, new_name] = place_of(to);
  const std::shared_ptr<Node> node = node_at(from);
  if (node == nullptr || new_folder == nullptr) {
    return -ENOENT;
  }
  const std::shared_ptr<Node> replaced = node_at(to);
  if (replaced == node) {
    return 0;
  }
  if (replaced != nullptr && replaced->is_folder != node->is_folder) {
    return node->is_folder ? -ENOTDIR : -EISDIR;
  }
  if (replaced != nullptr && !replaced->entries.empty()) {
    return -ENOTEMPTY;
  }
  if (old_folder == new_folder) {
    change_entries(*old_folder, {old_name, {{new_name, node}}});
  } else {
    change_entries(*old_folder, {old_name});
    change_entries(*new_folder, {"", {{new_name, node}}});
  }
  changed();
  return 0;
}

std::int64_t SimDisk::exchange(const std::string& one, const std::string& other) {
  const auto [folder, one_name] = place_of(one);
  const auto [other_folder, other_name] = place_of(other);
  std::shared_ptr<Node> one_node = node_at(one);
  std::shared_ptr<Node> other_node = node_at(other);
  if (one_node == nullptr || other_node == nullptr) {
    return -ENOENT;
  }
  if (folder != other_folder) {
    return -EINVAL;
  }
  change_entries(*folder, {"", {{one_name, other_node}, {other_name, one_node}}});
  changed();
  return 0;
}

std::int64_t SimDisk::remove(const std::string& path, bool folder) {
  const std::shared_ptr<Node> node = node_at(path);
  if (node == nullptr) {
    return -ENOENT;
  }
  if (node->is_folder != folder) {
    return folder ? -ENOTDIR : -EISDIR;
  }
  if (!node->entries.empty()) {
    return -ENOTEMPTY;
  }
  const auto [parent, name] = place_of(path);
  change_entries(*parent, {name});
  changed();
  return 0;
}

std::int64_t SimDisk::remove_tree(const std::string& path) {
  const std::shared_ptr<Node> node = node_at(path);
  if (node == nullptr) {
    return 0;
  }
  for (const auto& [name, within] : Entries(node->entries)) {
    if (const std::int64_t result = remove_tree(path + "/" + name); result < 0) {
      return result;
    }
  }
  return remove(path, node->is_folder);
}

std::int64_t SimDisk::make_folder(const std::string& path) {
  const auto [parent, name] = place_of(path);
  if (parent == nullptr) {
    return -ENOENT;
  }
  if (parent->entries.contains(name)) {
    return -EEXIST;
  }
  auto folder = std::make_shared<Node>();
  folder->is_folder = true;
  change_entries(*parent, {"", {{name, std::move(folder)}}});
  changed();
  return 0;
}

std::int64_t SimDisk::list_folder(const std::string& path, std::vector<std::string>& names) const {
  const std::shared_ptr<Node> folder = node_at(path);
  if (folder == nullptr) {
    return -ENOENT;
  }
  if (!folder->is_folder) {
    return -ENOTDIR;
  }
  names.clear();
  for (const auto& [name, node] : folder->entries) {
    names.push_back(name);
  }
  return 0;
}

}  // namespace tandem
