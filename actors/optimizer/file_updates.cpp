#include "actors/optimizer/file_updates.hpp"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {

/// Whether the ranges leave out no element between `begin` and `end`.
bool cover_all(const std::vector<UpdateRange>& ranges, std::size_t begin, std::size_t end) {
  std::size_t covered = begin;
  visit_ranges(ranges, begin, end, [&](const UpdateRange&, std::size_t first, std::size_t last) {
    covered = first == covered ? last : covered;
  });
  return covered == end;
}

}  // namespace

FileUpdates::FileUpdates(Options options)
    : options_(options),
      pool_(options.pool, options.chunk_elements, options.slice_chunks),
      buffers_(kSlices, options.buffers, options.buffer_bytes) {
  TANDEM_CHECK(options_.slice_chunks * options_.chunk_elements % kElementsAlignment == 0,
               "slices end at blocks of the file");
}

FileUpdates::Moves FileUpdates::prepare(TransferBuffer& buffer, const UpdateSlice& slice,
                                        UpdatePass pass) const {
  PlacedState after = *slice.unit;  // where the state lies once this pass counts
  if (slice.pass == UpdatePass::kSpeculative) {
    commit_speculative(after);
  }
  UpdatedUnit& view = buffer.view;
  view.buffers = {.gradient_type = after.buffers.gradient_type,
                  .weight_type = after.buffers.weight_type,
                  .layout = after.buffers.layout,
                  .position = after.buffers.position};
  view.shadow = {};
  view.ranges = after.ranges;
  Moves moves;
  const bool covered = cover_all(slice.unit->ranges, slice.begin, slice.end);
  std::size_t used = 0;
  const auto place = [&]<class T>(const Placed<T>& home, const ArrayUse& use, T*& array,
                                  const Placed<T>& to) {
    if (home.place() != Place::kFile) {
      array = home.host();
      return;
    }
    if (!use.read && !use.written) {
      return;
    }
    const std::size_t begin = use.bytes_of(slice.begin);
    std::byte* at = buffer.memory + used;
    const std::size_t bytes = use.bytes_of(slice.end) - begin;
    // Bytes that the pass overwrites anyway need not come in, except for those behind them in their
    // block.
    const std::size_t skipped = use.read || !covered ? 0 : bytes - bytes % StateFile::kAlignment;
    if (skipped < bytes) {
      moves.in.push_back(
          {Placed<const std::byte>(home) + (begin + skipped), at + skipped, bytes - skipped});
    }
    if (use.written) {
      moves.out.push_back({Placed<const std::byte>(to) + begin, at, bytes});
    }
    used += round_up(bytes, StateFile::kAlignment);
    // Where element 0 would lie: the pass touches the slice's elements alone.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer must not leave its array on the way.
    array = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(at) - begin);
  };
  visit_arrays(*slice.unit, pass, place, view, after);
  TANDEM_CHECK_LE(used, options_.buffer_bytes,
                  "a transfer buffer has room for a slice of every unit");
  return moves;
}

Task<> FileUpdates::run(UpdateSlice slice) {
  const UpdatePass pass =
      slice.pass == UpdatePass::kRollback ? UpdatePass::kRollback : UpdatePass::kInPlace;
  TANDEM_CHECK(slice.pass == UpdatePass::kInPlace || !slice.unit->backs_up_weight(),
               "no weight is lost that is not cast from its master");
  const TransferRing<TransferBuffer>::Loan loan = buffers_.take();
  Moves moves = prepare(*loan, slice, pass);
  const char* doing = "read";
  try {
    co_await options_.file->read(std::move(moves.in), slice.name);
    UpdateSlice there = slice;
    there.pass = pass;
    co_await pool_.run_on(&(*loan).view, there);
    doing = "write";
    co_await options_.file->write(std::move(moves.out), slice.name);
  } catch (const FileError& error) {
    throw nvme_failure(doing, fmt::format("optimizer state for \"{}\"", slice.name.c_str()), error);
  }
}

}  // namespace tandem
