#include "trainer/folder/run_room.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/storage/folder.hpp"
#include "engine/layout/update_config.hpp"
#include "engine/memory/saved_parameters.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"
#include "trainer/folder/output_folder.hpp"

namespace tandem {

namespace {

constexpr std::int64_t kReportBytes = 128 << 10;  // of a short run; longer ones write more
constexpr std::int64_t kFileBytes = std::int64_t{5} << 30;  // of models and checkpoints, at most
constexpr std::int64_t kReportFiles = 16;
constexpr std::int64_t kFilesBesideWeights = 10;  // of a model or a checkpoint

bool saves(const RunFlags& flags) { return flags.save_every > 0 || !flags.stop_after.empty(); }

/// The largest file that this process may write.
std::uint64_t file_limit_bytes() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::int64_t files_of(std::int64_t bytes) { return bytes / kFileBytes + 1 + kFilesBesideWeights; }

/// The number of those that lie in the folder; without --resume they are moved away.
std::int64_t checkpoints_in(const RunFlags& flags) {
  if (flags.resume.empty()) {
    return 0;
  }
  const NamedCheckpoints there = named_checkpoints(checkpoints_of(flags.output_dir));
  return std::ssize(there.whole) + std::ssize(there.slices);
}

/// By their names alone.
std::int64_t folders_of_checkpoints(const std::string& folder) {
  std::vector<std::string> names;
  (void)reach::list(folder, names);
  return std::ranges::count_if(
      names, [](const std::string& name) { return step_of_checkpoint(name).has_value(); });
}

/// The disk that holds `path`, or will.
std::optional<dev_t> disk_of(std::filesystem::path path) {
  struct stat found{};
  while (::stat(path.c_str(), &found) != 0) {
    if (errno != ENOENT || !path.has_relative_path()) {
      return std::nullopt;
    }
    path = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  }
  return found.st_dev;
}

bool checkpoints_lie_apart(const RunFlags& flags) {
  return disk_of(flags.output_dir) != disk_of(checkpoints_of(flags.output_dir));
}

/// The disks that a rank writes to, each with its part of what all of them take.
std::vector<RoomNeeds> by_disk(RoomNeeds all, bool apart) {
  const RoomNeeds checkpoints = {.folder = all.checkpoints,
                                 .checkpoints = all.checkpoints,
                                 .model_bytes = 0,
                                 .checkpoint_bytes = all.checkpoint_bytes,
                                 .keep = all.keep};
  if (all.keep == 0 || !apart) {
    return {std::move(all)};
  }
  all.keep = 0;
  return {std::move(all), checkpoints};
}

struct CheckpointBytes {
  std::int64_t all = 0;
  std::int64_t largest_array = 0;
};

CheckpointBytes checkpoint_bytes(const Model& model, const Config& config) {
  const auto arrays = static_cast<std::int64_t>(state_arrays(update_config(config.optimizer)));
  CheckpointBytes bytes;
  for (const UnitSpec& unit : model.units) {
    if (unit.frozen()) {
      continue;  // a checkpoint has what is trained
    }
    for (const ParameterSpec& parameter : unit.parameters) {
      const auto of_array = parameter.numel() * static_cast<std::int64_t>(sizeof(float));
      bytes.largest_array += of_array;
      bytes.all += of_array * (parameter.frozen ? 1 : 1 + arrays);
    }
  }
  return bytes;
}

/// A limit that the run would meet at its end otherwise, when its weights are to be saved.
void require_files(const RoomNeeds& needs, std::int64_t there, std::int64_t largest_array) {
  const std::int64_t largest = std::min(
      kFileBytes, std::max(needs.model_bytes - kReportBytes, needs.keep > 0 ? largest_array : 0));
  if (const std::uint64_t limit = file_limit_bytes();
      limit != RLIM_INFINITY && limit < static_cast<std::uint64_t>(largest)) {
    throw failure(ExitCode::kRefused, "output",
                  "files may have {} bytes here and the run's largest has {}; raise the limit with "
                  "`ulimit -f`",
                  limit, largest);
  }
  const std::int64_t more = needs.keep > 0 ? std::max<std::int64_t>(0, needs.keep - there) + 1 : 0;
  const std::int64_t files =
      kReportFiles + files_of(needs.model_bytes) + more * files_of(needs.checkpoint_bytes);
  if (const std::uint64_t free = free_disk_files(needs.folder);
      free < static_cast<std::uint64_t>(files)) {
    throw failure(ExitCode::kRefused, "output",
                  "the disk of {} takes {} more files (inodes) and the run makes up to {}; remove "
                  "some, keep fewer checkpoints, or give another output folder",
                  needs.folder, free, files);
  }
}

/// The bytes that a disk has to take, and those that it has.
struct Candidate {
  RoomNeeds room;
  std::int64_t there = 0;  // checkpoints that lie there
  std::uint64_t free = 0;
  std::uint32_t disk = 0;

  [[nodiscard]] double left() const {
    return static_cast<double>(free) - static_cast<double>(room.bytes(there));
  }
};

/// The one that has least room beyond what it has to take.
struct Tightest {
  std::optional<Candidate> found;

  void take(Candidate other) {
    if (!found || other.left() < found->left()) {
      found = std::move(other);
    }
  }
};

}  // namespace

std::int64_t RoomNeeds::bytes(std::int64_t there) const {
  // While training, one more than stay; the model comes when the last one is whole.
  const std::int64_t more = std::max<std::int64_t>(0, keep - there);
  const std::int64_t while_saving = keep > 0 ? (more + 1) * checkpoint_bytes : 0;
  return std::max(while_saving, more * checkpoint_bytes + model_bytes);
}

bool RunRoom::hold_piece(const std::string& folder, std::uint64_t bytes) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_EXCL;
  FileHandle file(reach::open(folder, kFlags | O_TMPFILE, 0600));
  if (!file.is_open()) {
    // As a file that is_abandoned_file(), should the process be killed just now.
    const std::string path = folder + "/.room.tmp-" + fresh_nonce();
    file = FileHandle(reach::open(path, kFlags | O_CREAT | O_NOFOLLOW, 0600));
    (void)reach::remove(path);
  }
  if (!file.is_open() || ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return false;
  }
  held_.push_back(std::move(file));
  return true;
}

void RunRoom::hold() {
  give_back();
  for (const RoomNeeds& needs : needs_) {
    hold(needs);
  }
}

void RunRoom::hold(const RoomNeeds& needs) {
  const auto needed = static_cast<std::uint64_t>(
      needs.bytes(needs.keep > 0 ? folders_of_checkpoints(needs.checkpoints) : 0));
  std::uint64_t left = std::min(needed, free_disk_bytes(needs.folder));
  const std::uint64_t piece = std::min<std::uint64_t>(file_limit_bytes(), std::uint64_t{1} << 40);
  while (left > 0) {
    const std::uint64_t bytes = std::min(left, piece);
    if (!hold_piece(needs.folder, bytes)) {
      return;
    }
    left -= bytes;
  }
}

RunRoom plan_disk(RunPlan& plan, const Model& model, const RunFlags& flags, const Config& config,
                  std::size_t weight_bytes, std::int64_t beside_bytes, Communicator& ranks,
                  const Disks& disks) {
  const std::int64_t model_bytes =
      saved_parameters(model) * static_cast<std::int64_t>(weight_bytes) + beside_bytes +
      kReportBytes;
  const CheckpointBytes checkpoint = checkpoint_bytes(model, config);
  const auto me = static_cast<std::uint32_t>(ranks.rank());
  std::string text;
  if (disks.is_first_of_its_disk(me)) {
    text = fmt::format("{} {} {} {}", free_disk_bytes(flags.output_dir),
                       free_disk_bytes(checkpoints_of(flags.output_dir)), checkpoints_in(flags),
                       checkpoints_lie_apart(flags) ? 1 : 0);
  }
  const std::vector<std::string> facts = ranks.of_all_ranks(text);
  std::vector<RoomNeeds> mine;
  Tightest tightest;
  for (std::uint32_t disk = 0; disk < disks.count(); ++disk) {
    std::istringstream words(facts[disks.first_rank_of(disk)]);
    std::array<std::uint64_t, 2> free{};  // of the output folder, of its checkpoints
    std::int64_t there = 0;
    int apart = 0;
    words >> free[0] >> free[1] >> there >> apart;
    const auto sharers = static_cast<std::int64_t>(disks.ranks_of(disk).size());
    const bool in_parts = disks.are_several() && config.zero.stage > 0;
    const std::vector<RoomNeeds> rooms =
        by_disk({.folder = flags.output_dir,
                 .checkpoints = checkpoints_of(flags.output_dir),
                 .model_bytes = disk == 0 ? model_bytes : 0,
                 .checkpoint_bytes =
                     in_parts ? checkpoint.all * sharers / ranks.world_size() : checkpoint.all,
                 .keep = saves(flags) ? flags.keep : 0},
                apart != 0);
    const bool is_mine = disks.is_first_of_its_disk(me) && disks.of_rank[me] == disk;
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      tightest.take({.room = rooms[i], .there = there, .free = free[i], .disk = disk});
      if (is_mine) {
        require_files(rooms[i], there, checkpoint.largest_array);
      }
    }
    if (is_mine) {
      mine = rooms;
    }
  }
  const Candidate& least = *tightest.found;
  const auto on_disk = [&](MemoryPurpose purpose) -> std::int64_t& {
    return plan.report.plan
        .bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(MemoryKind::kDisk)];
  };
  on_disk(MemoryPurpose::kSaved) = least.room.model_bytes;
  on_disk(MemoryPurpose::kCheckpoint) = least.room.checkpoints_bytes(least.there);
  if (least.free <= static_cast<std::uint64_t>(INT64_MAX)) {
    const std::string host = disks.are_several() ? " on host " + disks.hosts[least.disk] : "";
    plan.limits.disk = {static_cast<std::int64_t>(least.free),
                        fmt::format("free on the disk of {}{}", least.room.folder, host)};
  }
  if (!plan.report.lacks) {
    plan.report.lacks = shortfall_of(plan.report.plan, plan.limits);
  }
  return RunRoom(std::move(mine));
}

}  // namespace tandem
