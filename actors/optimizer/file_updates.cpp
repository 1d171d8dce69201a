#include "actors/optimizer/file_updates.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "runtime/event_loop.hpp"
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

FileUpdates::Transfers FileUpdates::prepare(Stage& stage, const UpdateSlice& slice) const {
  stage.view = *slice.unit;
  Transfers transfers;
  std::size_t used = 0;
  visit_arrays(stage.view, slice.pass, [&]<class T>(T*& array, const ArrayUse& use) {
    if (array == nullptr || !options_.file->holds(array)) {
      return;
    }
    using Byte = std::remove_const_t<T>;
    const std::size_t begin = use.bytes_of(slice.begin);
    auto* home = reinterpret_cast<std::byte*>(const_cast<Byte*>(array)) + begin;
    std::byte* at = stage.memory + used;
    transfers.push_back({home, at, use.bytes_of(slice.end) - begin});
    used += round_up(transfers.back().bytes, StateFile::kAlignment);
    // Where element 0 would lie: the pass touches the slice's elements alone.
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer must not leave its array on the way.
    array = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(at) - begin);
  });
  TANDEM_CHECK_LE(used, options_.stage_bytes, "a stage has room for a slice of every unit");
  return transfers;
}

Task<> FileUpdates::transfer(const UpdateSlice* slice, Transfers transfers, bool in) {
  if (transfers_++ == 0) {
    busy_since_ = EventLoop::current().now();
  }
  std::optional<std::string> failed;
  try {
    if (in) {
      co_await options_.file->read(std::move(transfers));
    } else {
      co_await options_.file->write(std::move(transfers));
    }
  } catch (const FileError& error) {
    failed = error.what();
  }
  if (--transfers_ == 0) {
    busy_s_ += std::chrono::duration<double>(EventLoop::current().now() - busy_since_).count();
  }
  if (failed) {
    throw failure(ExitCode::kFailure, "nvme",
                  "cannot {} the optimizer state for \"{}\": {}; resume from the last checkpoint, "
                  "on another disk",
                  in ? "read" : "write", slice->name.c_str(), *failed);
  }
}

Task<> FileUpdates::run(UpdateSlice slice) {
  TANDEM_CHECK(slice.pass == UpdatePass::kInPlace, "state in a file has no second copy");
  const StageRing<Stage>::Loan loan = stages_.take();
  const Transfers transfers = prepare(*loan, slice);
  co_await transfer(&slice, transfers, true);
  UpdateSlice there = slice;
  there.unit = &(*loan).view;
  co_await pool_.run(there);
  co_await transfer(&slice, transfers, false);
}

}  // namespace tandem
