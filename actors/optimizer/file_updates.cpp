#include "actors/optimizer/file_updates.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

FileUpdates::FileUpdates(Options options)
    : options_(options),
      pool_(options.pool, options.chunk_elements, options.slice_chunks),
      stages_(kSlices, options.stages, options.stage_bytes) {
  TANDEM_CHECK(options_.slice_chunks * options_.chunk_elements % kElementsAlignment == 0,
               "slices end at blocks of the file");
}

FileUpdates::Moves FileUpdates::prepare(Stage& stage, const UpdateSlice& slice) const {
  stage.view = *slice.unit;
  Moves moves;
  std::size_t used = 0;
  visit_arrays(stage.view, slice.pass, [&]<class T>(T*& array, const ArrayUse& use) {
    if (array == nullptr || !options_.file->holds(array)) {
      return;
    }
    using Byte = std::remove_const_t<T>;
    const std::size_t begin = use.bytes_of(slice.begin);
    auto* home = reinterpret_cast<std::byte*>(const_cast<Byte*>(array)) + begin;
    std::byte* at = stage.memory + used;
    moves.in.push_back({home, at, use.bytes_of(slice.end) - begin});
    if (use.written) {
      moves.out.push_back(moves.in.back());
    }
    used += round_up(moves.in.back().bytes, StateFile::kAlignment);
    // Where element 0 would lie: the pass touches the slice's elements alone.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer must not leave its array on the way.
    array = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(at) - begin);
  });
  TANDEM_CHECK_LE(used, options_.stage_bytes, "a stage has room for a slice of every unit");
  return moves;
}

Task<> FileUpdates::run(UpdateSlice slice) {
  TANDEM_CHECK(slice.pass == UpdatePass::kInPlace, "state in a file has no second copy");
  const StageRing<Stage>::Loan loan = stages_.take();
  Moves moves = prepare(*loan, slice);
  const char* doing = "read";
  try {
    co_await options_.file->read(std::move(moves.in));
    UpdateSlice there = slice;
    there.unit = &(*loan).view;
    co_await pool_.run(there);
    doing = "write";
    co_await options_.file->write(std::move(moves.out));
  } catch (const FileError& error) {
    throw nvme_failure(doing, fmt::format("optimizer state for \"{}\"", slice.name.c_str()), error);
  }
}

}  // namespace tandem
