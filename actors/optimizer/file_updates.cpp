#include "actors/optimizer/file_updates.hpp"

#include <cstdint>
#include <type_traits>
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

/// Also of what a pass only reads.
template <class T>
std::byte* address_of(T* array) noexcept {
  return reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(array));
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
  buffer.view = *slice.unit;
  UpdatedUnit after = *slice.unit;  // where the state lies once this pass counts
  if (slice.pass == UpdatePass::kSpeculative) {
    commit_speculative(after);
  }
  std::vector<std::byte*> homes;
  visit_arrays(after, pass,
               [&]<class T>(T*& array, const ArrayUse&) { homes.push_back(address_of(array)); });
  Moves moves;
  const bool covered = cover_all(slice.unit->ranges, slice.begin, slice.end);
  std::size_t used = 0;
  visit_arrays(
      buffer.view, pass, [&, n = std::size_t{0}]<class T>(T*& array, const ArrayUse& use) mutable {
        std::byte* const to = homes[n++];
        if (array == nullptr || !options_.file->holds(array) || (!use.read && !use.written)) {
          return;
        }
        const std::size_t begin = use.bytes_of(slice.begin);
        std::byte* const home = address_of(array) + begin;
        std::byte* at = buffer.memory + used;
        const std::size_t bytes = use.bytes_of(slice.end) - begin;
        // Bytes that the pass overwrites anyway need not come in, except for those behind them in
        // their block.
        const std::size_t skipped =
            use.read || !covered ? 0 : bytes - bytes % StateFile::kAlignment;
        if (skipped < bytes) {
          moves.in.push_back({home + skipped, at + skipped, bytes - skipped});
        }
        if (use.written) {
          moves.out.push_back({to + begin, at, bytes});
        }
        used += round_up(bytes, StateFile::kAlignment);
        // Where element 0 would lie: the pass touches the slice's elements alone.
        // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer must not leave its array on the way.
        array = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(at) - begin);
      });
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
    there.unit = &(*loan).view;
    there.pass = pass;
    co_await pool_.run(there);
    doing = "write";
    co_await options_.file->write(std::move(moves.out), slice.name);
  } catch (const FileError& error) {
    throw nvme_failure(doing, fmt::format("optimizer state for \"{}\"", slice.name.c_str()), error);
  }
}

}  // namespace tandem
