// The protocol of ranks that share one disk: the disk has the whole checkpoint, rank 0 makes and
// names its folder, and every rank finds and reads by itself.
//
// Invariant: whenever the run is killed or the power fails, the checkpoint's name either does not
// exist or has everything. The rename is the commit, and no older checkpoint is removed before it
// is durable. No disk waits for another one, so no vote stands between seal and removal.
#include <utility>

#include "engine/checkpoint/checkpoint_protocol.hpp"

namespace tandem {
namespace {

class SharedDisk final : public CheckpointProtocol {
 public:
  SharedDisk(Disks disks, CheckpointExchange ranks)
      : CheckpointProtocol(std::move(disks), std::move(ranks)) {}

  [[nodiscard]] CheckpointLayout layout(const RankLayout& layout, bool with_frozen) const override {
    return CheckpointLayout::of(layout, {}, with_frozen);
  }

  Task<> save(RankSave* save) override {
    save->plan(co_await save->votes.all_have(SavePhase::kAgreed, save->own_id()), {});
    co_await write_files(save);

    if (is_first()) {
      co_await save->seal();       // all of it is durable, the manifest last
      co_await save->take_name();  // the commit
      co_await save->remove_older();
    }
  }

  Task<FoundCandidates> find(FileIo* io, std::string folder, bool is_one) override {
    FoundCandidates found;
    std::vector<std::vector<DiskEntry>> own;
    own.push_back(
        co_await entries_on_disk(io, std::move(folder), is_one, /*with_ids=*/false, &found.broken));
    found.candidates = merged(std::move(own));
    co_return found;
  }

  Task<std::vector<std::string>> of_disks(std::string mine) override {
    co_return std::vector{std::move(mine)};
  }

  Task<> gather(OpenedCheckpoint /*opened*/, std::size_t /*unit*/) override { co_return; }
};

}  // namespace

std::unique_ptr<CheckpointProtocol> shared_disk_protocol(Disks disks, CheckpointExchange ranks) {
  return std::make_unique<SharedDisk>(std::move(disks), std::move(ranks));
}

}  // namespace tandem
