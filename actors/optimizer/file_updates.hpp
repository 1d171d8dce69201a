// actors/optimizer/file_updates.hpp — updates on the pool of state that lies in a file.
//
// Those of a unit's arrays that lie in the file pass through a stage in memory:
//   read | update | write, slices overlapping
// A stage for each slice under way, so that while one is updated others come in and go out. Slices
// are taken in the order of the optimizer's deadlines, so reads are asked for in that order, and a
// unit counts as updated when its last slice has been written.
// The pass itself is the pool's: it sees the unit's arrays where they are, but for those of the
// file, whose addresses are moved so that the slice's elements lie in the stage.
// Weights and gradients that lie in the file pass through it as state does; a gradient is only
// read, and a weight that is cast from its master only written.
// Ahead of the verdict a slice is updated in its stage as behind it, and written to the shadow,
// which lies in the file as well. So the file still has the old state: doing it again is an update
// in place, and taking it back casts the weight from the old master.
// Invariant: what no range covers is read and written back as it was. A slice's arrays begin at
// blocks of the file, so slices never share one.
// Failure: an Error that names the unit ends the slice; nothing more can be updated then.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/kernels/state_layout.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/stage_ring.hpp"
#include "actors/optimizer/update_runner.hpp"

namespace tandem {

class FileUpdates final : public UpdateRunner {
 public:
  static constexpr std::size_t kSlices = 4;  // two coming in, one being updated, one going out
  /// Elements whose arrays fill whole blocks of the file in every layout.
  static constexpr std::size_t kElementsAlignment = StateFile::kAlignment * kStateBlock;

  struct Options {
    StateFile* file = nullptr;  // open; outlives the runner
    CpuPool* pool = nullptr;    // likewise
    std::size_t chunk_elements = 0;
    std::size_t slice_chunks = 0;  // a slice's elements are a multiple of kElementsAlignment
    // memory of kSlices * stage_bytes, as StateFile::Transfer wants it; outlives the runner
    std::byte* stages = nullptr;
    std::size_t stage_bytes = 0;
  };

  explicit FileUpdates(Options options);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return options_.slice_chunks; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return kSlices; }
  Task<> run(UpdateSlice slice) override;

 private:
  using Transfers = std::vector<StateFile::Transfer>;
  struct Stage {
    std::byte* memory = nullptr;
    UpdatedUnit view;  // the unit, as the pass finds it
  };

  /// The transfers of a slice.
  struct Moves {
    Transfers in;
    Transfers out;
  };

  /// Makes the view; `pass`: what the pool does with it.
  [[nodiscard]] Moves prepare(Stage& stage, const UpdateSlice& slice, UpdatePass pass) const;

  Options options_;
  PoolUpdates pool_;
  StageRing<Stage> stages_;
};

}  // namespace tandem
