#include "engine/rank/boundary_place.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/util/check.hpp"
#include "runtime/util/round_up.hpp"

namespace tandem {

namespace {
constexpr std::size_t kGrain = std::size_t{1} << 20;  // that a thread copies at a time
}  // namespace

// ---- in host memory ----

HostBoundaries::HostBoundaries(Accelerator& accelerator, std::vector<Name> names)
    : accelerator_(accelerator),
      to_host_(accelerator.device().stream("d2h boundaries")),
      to_device_(accelerator.device().stream("h2d boundaries")),
      names_(std::move(names)),
      slots_(names_.size()) {}

HostBoundaries::~HostBoundaries() {
  for (Slot& slot : slots_) {
    unpin(slot);
  }
}

void HostBoundaries::unpin(Slot& slot) noexcept {
  if (std::exchange(slot.pinned, false)) {
    accelerator_.device().unpin(slot.memory.span());
  }
}

std::size_t HostBoundaries::host_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.memory.size_bytes();
  }
  return bytes;
}

namespace {

/// copy(begin, bytes) for each piece, at most two of them on their way.
template <class Copy>
Task<> by_pieces(DeviceStream stream, std::size_t bytes, Copy copy) {
  std::array<std::optional<DeviceEvent>, 2> left;
  std::size_t piece = 0;
  for (std::size_t at = 0; at < bytes; at += HostBoundaries::kPieceBytes, ++piece) {
    if (left[piece % 2]) {
      co_await left[piece % 2]->wait();
    }
    copy(at, std::min(HostBoundaries::kPieceBytes, bytes - at));
    left[piece % 2] = stream.record();
  }
  if (piece > 0) {
    co_await left[(piece - 1) % 2]->wait();  // and so all before it: a stream is in order
  }
}

}  // namespace

Task<> HostBoundaries::take_away(std::size_t boundary, std::span<const std::byte> from) {
  TANDEM_CHECK(boundary < slots_.size(), "a boundary is one of the model's");
  Slot& slot = slots_[boundary];
  if (slot.memory.size_bytes() < from.size()) {
    unpin(slot);
    slot.memory = HostBuffer();
    slot.memory = HostBuffer(from.size());
    slot.pinned = accelerator_.device().pin(slot.memory.span());
  }
  to_host_.name_copies(names_[boundary]);
  std::byte* const there = slot.memory.data();
  const auto copy = [this, there, from](std::size_t at, std::size_t bytes) {
    to_host_.to_host({there + at, bytes}, from.data() + at);
  };
  co_await by_pieces(to_host_, from.size(), copy);
}

Task<> HostBoundaries::bring_back(std::size_t boundary, std::span<std::byte> into) {
  TANDEM_CHECK_LE(into.size(), slots_[boundary].memory.size_bytes(),
                  "as much of a boundary comes back as has left");
  const std::byte* const there = slots_[boundary].memory.data();
  to_device_.name_copies(names_[boundary]);
  const auto copy = [this, there, into](std::size_t at, std::size_t bytes) {
    if (const std::optional<DeviceEvent> weights = accelerator_.gathers_queued()) {
      to_device_.wait(*weights);
    }
    to_device_.to_device(into.data() + at, {there + at, bytes});
  };
  co_await by_pieces(to_device_, into.size(), copy);
}

// ---- on NVMe ----

FileBoundaries::FileBoundaries(Options options)
    : options_(std::move(options)), files_(options_.names.size()) {}

std::size_t FileBoundaries::host_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const HostBuffer& stage : stages_) {
    bytes += stage.size_bytes();
  }
  return bytes;
}

Task<> FileBoundaries::open(std::size_t boundary, std::size_t bytes) {
  std::unique_ptr<StateFile>& file = files_[boundary];
  file = std::make_unique<StateFile>(bytes);
  co_await file->open({.io = options_.io,
                       .pool = options_.copies,
                       .path = fmt::format("{}-{}", options_.path, opened_++),
                       .piece_bytes = options_.block_bytes,
                       .busy = options_.busy});
}

Task<> FileBoundaries::take_away(std::size_t boundary, std::span<const std::byte> from) {
  TANDEM_CHECK(boundary < files_.size(), "a boundary is one of the model's");
  const std::size_t room = round_up(from.size(), StateFile::kAlignment);
  HostBuffer& stage = stage_of(boundary);
  if (stage.size_bytes() < room) {
    stage = HostBuffer();
    stage = HostBuffer(room);
  }
  const auto copy_grain = [&stage, from](std::size_t i) {
    const std::size_t at = i * kGrain;
    std::memcpy(stage.data() + at, from.data() + at, std::min(kGrain, from.size() - at));
  };
  co_await options_.copies->for_chunks((from.size() + kGrain - 1) / kGrain, copy_grain,
                                       {.name = "copy boundary"});
  try {
    if (files_[boundary] == nullptr || files_[boundary]->size_bytes() < room) {
      co_await open(boundary, room);
    }
    co_await files_[boundary]->write(
        {{.in_file = files_[boundary]->data(), .memory = stage.data(), .bytes = from.size()}});
  } catch (const FileError& error) {
    throw nvme_failure("write", options_.names[boundary], error);
  }
}

Task<> FileBoundaries::bring_back(std::size_t boundary, std::span<std::byte> into) {
  TANDEM_CHECK(into.data() == room(boundary), "a boundary comes back to its stage");
  TANDEM_CHECK(files_[boundary] != nullptr && into.size() <= files_[boundary]->size_bytes(),
               "as much of a boundary comes back as has left");
  try {
    co_await files_[boundary]->read(
        {{.in_file = files_[boundary]->data(), .memory = into.data(), .bytes = into.size()}});
  } catch (const FileError& error) {
    throw nvme_failure("read", options_.names[boundary], error);
  }
}

}  // namespace tandem
