// actors/optimizer/file_updates.hpp — updates state in a file, on the pool.
//
// A unit's arrays in the file go through a transfer buffer in memory:
//   read | update | write, slices overlapping
// Each slice under way has a buffer, so while one slice is updated others are read and written.
// Slices are taken in the order of the optimizer's deadlines, so reads are issued in that order. A
// unit is updated when its last slice has been written. The pool runs the pass. It uses arrays in
// memory in place; for arrays in the file it gets addresses at which the slice's elements lie in
// the buffer. Weights and gradients in the file are handled like state; a gradient is only read,
// and a weight that is cast from its master is only written. A speculative update writes to the
// shadow, which also lies in the file. So the file keeps the old state: a redo is an update in
// place, and a rollback casts the weight from the old master.
// Invariant: elements outside of the ranges are written back unchanged. A slice's arrays begin at
// multiples of the file's alignment, so no two slices share an aligned block.
// Failure: an Error that names the unit ends the slice; nothing can be updated after that.
// Thread rule: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "actors/kernels/state_layout.hpp"
#include "actors/memory/state_file.hpp"
#include "actors/optimizer/transfer_ring.hpp"
#include "actors/optimizer/update_runner.hpp"

namespace tandem {

class FileUpdates final : public UpdateRunner {
 public:
  static constexpr std::size_t kSlices = 4;  // two coming in, one being updated, one going out
  /// A multiple of elements whose arrays fill whole blocks of the file's alignment in every layout.
  static constexpr std::size_t kElementsAlignment = StateFile::kAlignment * kScaleGroup;

  struct Options {
    StateFile* file = nullptr;  // open; outlives the runner
    CpuPool* pool = nullptr;    // outlives the runner
    std::size_t chunk_elements = 0;
    std::size_t slice_chunks = 0;  // a slice's elements are a multiple of kElementsAlignment
    // Memory of kSlices * buffer_bytes, aligned as StateFile::Transfer needs it. It outlives the
    // runner.
    std::byte* buffers = nullptr;
    std::size_t buffer_bytes = 0;
  };

  explicit FileUpdates(Options options);

  [[nodiscard]] std::size_t slice_chunks() const noexcept override { return options_.slice_chunks; }
  [[nodiscard]] std::size_t slices_under_way() const noexcept override { return kSlices; }
  Task<> run(UpdateSlice slice) override;

 private:
  using Transfers = std::vector<StateFile::Transfer>;
  struct TransferBuffer {
    std::byte* memory = nullptr;
    UpdatedUnit view;  // the unit with the addresses that the pass uses
  };

  /// The transfers of a slice.
  struct Moves {
    Transfers in;
    Transfers out;
  };

  /// Sets the view, and returns the transfers. `pass` is the pass that the pool will run.
  [[nodiscard]] Moves prepare(TransferBuffer& buffer, const UpdateSlice& slice,
                              UpdatePass pass) const;

  Options options_;
  PoolUpdates pool_;
  TransferRing<TransferBuffer> buffers_;
};

}  // namespace tandem
