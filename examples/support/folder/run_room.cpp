#include "examples/support/folder/run_room.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/kernels/update/state_memory.hpp"
#include "actors/storage/folder.hpp"
#include "engine/layout/update_config.hpp"
#include "engine/memory/saved_parameters.hpp"
#include "examples/support/folder/output_folder.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/util/error.hpp"

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

/// Of those that lie in the folder; without --resume they are moved away.
std::int64_t checkpoints_in(const RunFlags& flags) {
  if (flags.resume.empty()) {
    return 0;
  }
  const NamedCheckpoints there = named_checkpoints(checkpoints_of(flags.output_dir));
  return std::ssize(there.whole) + std::ssize(there.slices);
}

/// By their names alone.
std::int64_t folders_of_checkpoints(const std::string& output_dir) {
  std::int64_t count = 0;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(checkpoints_of(output_dir), ignored)) {
    count += step_of_checkpoint(entry.path().filename().string()) ? 1 : 0;
  }
  return count;
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
  if (const std::uint64_t free = free_disk_files(needs.output_dir);
      free < static_cast<std::uint64_t>(files)) {
    throw failure(ExitCode::kRefused, "output",
                  "the disk of {} takes {} more files (inodes) and the run makes up to {}; remove "
                  "some, keep fewer checkpoints, or give another output folder",
                  needs.output_dir, free, files);
  }
}

}  // namespace

std::int64_t RoomNeeds::bytes(std::int64_t there) const {
  // While training, one more than stay; the model comes when the last one is whole.
  const std::int64_t more = std::max<std::int64_t>(0, keep - there);
  const std::int64_t while_saving = keep > 0 ? (more + 1) * checkpoint_bytes : 0;
  return std::max(while_saving, more * checkpoint_bytes + model_bytes);
}

bool RunRoom::hold_piece(std::uint64_t bytes) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_EXCL;
  FileHandle file(::open(needs_.output_dir.c_str(), kFlags | O_TMPFILE, 0600));
  if (!file.is_open()) {
    // As a file that is_abandoned_file(), should the process be killed just now.
    const std::string path = needs_.output_dir + "/.room.tmp-" + fresh_nonce();
    file = FileHandle(::open(path.c_str(), kFlags | O_CREAT | O_NOFOLLOW, 0600));
    (void)::unlink(path.c_str());
  }
  if (!file.is_open() || ::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return false;
  }
  held_.push_back(std::move(file));
  return true;
}

void RunRoom::hold() {
  give_back();
  if (needs_.output_dir.empty()) {
    return;
  }
  const auto needed = static_cast<std::uint64_t>(
      needs_.bytes(needs_.keep > 0 ? folders_of_checkpoints(needs_.output_dir) : 0));
  std::uint64_t left = std::min(needed, free_disk_bytes(needs_.output_dir));
  const std::uint64_t piece = std::min<std::uint64_t>(file_limit_bytes(), std::uint64_t{1} << 40);
  while (left > 0) {
    const std::uint64_t bytes = std::min(left, piece);
    if (!hold_piece(bytes)) {
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
    text = fmt::format("{} {}", free_disk_bytes(flags.output_dir), checkpoints_in(flags));
  }
  const std::vector<std::string> facts = ranks.of_all_ranks(text);
  RoomNeeds mine;
  RoomNeeds tightest;
  std::int64_t tightest_there = 0;
  std::uint64_t tightest_free = 0;
  std::uint32_t number = 0;
  const auto left = [](const RoomNeeds& room, std::int64_t there, std::uint64_t free) {
    return static_cast<double>(free) - static_cast<double>(room.bytes(there));
  };
  for (std::uint32_t disk = 0; disk < disks.count(); ++disk) {
    std::istringstream words(facts[disks.first_rank_of(disk)]);
    std::uint64_t free = 0;
    std::int64_t there = 0;
    words >> free >> there;
    const auto sharers = static_cast<std::int64_t>(disks.ranks_of(disk).size());
    const bool in_parts = disks.are_several() && config.zero.stage > 0;
    const RoomNeeds room = {.output_dir = flags.output_dir,
                            .model_bytes = disk == 0 ? model_bytes : 0,
                            .checkpoint_bytes = in_parts
                                                    ? checkpoint.all * sharers / ranks.world_size()
                                                    : checkpoint.all,
                            .keep = saves(flags) ? flags.keep : 0};
    if (disk == 0 || left(room, there, free) < left(tightest, tightest_there, tightest_free)) {
      tightest = room;
      tightest_there = there;
      tightest_free = free;
      number = disk;
    }
    if (disks.is_first_of_its_disk(me) && disks.of_rank[me] == disk) {
      mine = room;
      require_files(room, there, checkpoint.largest_array);
    }
  }
  const auto on_disk = [&](MemoryPurpose purpose) -> std::int64_t& {
    return plan.report.plan
        .bytes[static_cast<std::size_t>(purpose)][static_cast<std::size_t>(MemoryKind::kDisk)];
  };
  on_disk(MemoryPurpose::kSaved) = tightest.model_bytes;
  on_disk(MemoryPurpose::kCheckpoint) = tightest.checkpoints(tightest_there);
  if (tightest_free <= static_cast<std::uint64_t>(INT64_MAX)) {
    const std::string host = disks.are_several() ? " on host " + disks.hosts[number] : "";
    plan.limits.disk = {static_cast<std::int64_t>(tightest_free),
                        fmt::format("free on the disk of {}{}", flags.output_dir, host)};
  }
  if (!plan.report.lacks) {
    plan.report.lacks = shortfall_of(plan.report.plan, plan.limits);
  }
  return RunRoom(std::move(mine));
}

}  // namespace tandem
