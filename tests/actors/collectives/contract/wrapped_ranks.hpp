// tests/actors/collectives/contract/wrapped_ranks.hpp — ranks whose back end is a decorator of
// another one: on a simulated device, or with operands in a state file.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "actors/collectives/staged_backend.hpp"
#include "actors/collectives/state_file_backend.hpp"
#include "runtime/device/sim_device.hpp"
#include "tests/actors/collectives/contract/backend_world.hpp"
#include "tests/support/io_support.hpp"

namespace tandem::test {

/// A rank that owns its back end.
class OwningRank : public ContractRank {
 public:
  OwningRank(std::unique_ptr<CollectiveBackend> backend, std::size_t home_bytes)
      : ContractRank(*backend, home_bytes), backend_(std::move(backend)) {}

 private:
  std::unique_ptr<CollectiveBackend> backend_;
};

// With four ranks a piece is one grain, so that a few dozen KB already make several pieces.
inline constexpr std::size_t kStageBytes = std::size_t{16} << 10;

class DeviceRank final : public ContractRank {
 public:
  DeviceRank(EventLoop& loop, std::unique_ptr<CollectiveBackend> inner, SimDevice::Time time)
      : DeviceRank(std::make_unique<Parts>(loop, std::move(inner), time)) {}

 protected:
  std::byte* allocate(Home home, std::size_t bytes) override {
    return home == Home::kDevice
               ? parts_->buffers.emplace_back(parts_->device.allocate(bytes)).data()
               : ContractRank::allocate(home, bytes);
  }

 private:
  struct Parts {
    Parts(EventLoop& loop, std::unique_ptr<CollectiveBackend> inner, SimDevice::Time time)
        : device(loop, {.time = time, .to_device_bytes_per_s = 20e9, .to_host_bytes_per_s = 10e9}),
          staged(device, std::move(inner), {.stage_bytes = kStageBytes}) {}
    SimDevice device;
    std::vector<DeviceBuffer> buffers;
    StagedBackend staged;
  };
  explicit DeviceRank(std::unique_ptr<Parts> parts)
      : ContractRank(parts->staged, std::size_t{6} << 20), parts_(std::move(parts)) {}

  std::unique_ptr<Parts> parts_;
};

/// Sets where the operands of a StagedBackend may lie.
inline void use_device(Backend& backend, std::uint32_t fewest_ranks) {
  backend.buffer_bytes = kStageBytes;
  backend.large_bytes = 100'003;
  backend.large_tiles = 67;
  backend.gathers = {{Home::kAllocated, Home::kDevice},
                     {Home::kOwn, Home::kDevice},
                     {Home::kDevice, Home::kDevice},
                     {Home::kAllocated, Home::kAllocated}};
  backend.reductions = {{Home::kDevice, Home::kAllocated}, {Home::kAllocated, Home::kAllocated}};
  if (fewest_ranks == 1) {
    backend.reductions.push_back({Home::kDevice, Home::kDevice});
  }
  backend.swaps =
      backend.exchanges = {{Home::kDevice, Home::kDevice}, {Home::kAllocated, Home::kAllocated}};
}

class FileRank final : public ContractRank {
 public:
  FileRank(EventLoop& loop, CpuPool& pool, std::unique_ptr<CollectiveBackend> inner, bool straight)
      : FileRank(std::make_unique<Parts>(loop, pool, std::move(inner), straight)) {}

  Task<> put(Operand operand, std::vector<std::byte> content) override {
    if (operand.place() != Place::kFile) {
      co_await ContractRank::put(operand, std::move(content));
      co_return;
    }
    std::ranges::copy(content, parts_->own.data());
    co_await parts_->file.write({{operand, parts_->own.data(), content.size()}});
  }
  Task<std::vector<std::byte>> get(Operand operand, std::size_t bytes) override {
    if (operand.place() != Place::kFile) {
      co_return co_await ContractRank::get(operand, bytes);
    }
    std::byte* const own = parts_->own.data();
    co_await parts_->file.read({{operand, own, bytes}});
    own[bytes] = kUnwritten;
    co_return std::vector<std::byte>(own, own + bytes + 1);
  }

  static constexpr std::size_t kHomeBytes = std::size_t{24} << 20;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // of an operand in the file

 protected:
  std::byte* allocate(Home home, std::size_t bytes) override {
    return home == Home::kFile ? parts_->file.data().file() : ContractRank::allocate(home, bytes);
  }
  [[nodiscard]] std::size_t alignment() const noexcept override { return StateFile::kAlignment; }

 private:
  struct Parts {
    Parts(EventLoop& loop, CpuPool& pool, std::unique_ptr<CollectiveBackend> under, bool straight)
        : inner(std::move(under)),
          io(loop, FileIo::make_backend(loop, {})),
          backend({.inner = inner.get(),
                   .file = &file,
                   .shard_buffer = straight ? nullptr : inner->allocate(kMostBytes),
                   .accumulator_buffer = straight ? nullptr : inner->allocate(kMostBytes),
                   .name_of = [](Placed<const std::byte>) { return std::string("an operand"); }}) {
      loop.run(
          [](Parts* parts, CpuPool* workers) -> Task<> {
            co_await parts->file.open({.io = &parts->io,
                                       .pool = workers,
                                       .path = parts->folder / "state",
                                       .piece_bytes = std::size_t{256} << 10});
          },
          this, &pool);
    }
    TempDir folder;
    std::unique_ptr<CollectiveBackend> inner;
    FileIo io;
    StateFile file{kHomeBytes};
    HostBuffer own{kMostBytes};
    StateFileBackend backend;
  };
  explicit FileRank(std::unique_ptr<Parts> parts)
      : ContractRank(parts->backend, kHomeBytes), parts_(std::move(parts)) {}

  std::unique_ptr<Parts> parts_;
};

/// Sets where the operands of a StateFileBackend may lie.
inline void use_file(Backend& backend, bool straight) {
  backend.buffer_bytes = std::size_t{256} << 10;
  backend.large_bytes = 3 * backend.buffer_bytes + 333;
  backend.large_tiles = 131;
  backend.gathers = {{Home::kFile, Home::kAllocated}, {Home::kAllocated, Home::kAllocated}};
  backend.reductions = {{Home::kAllocated, Home::kAllocated}};
  if (straight) {
    backend.not_promised[Promise::kMovesAnySize] =
        "a shard is read straight into its block, in multiples of 4096 bytes";
  } else {
    backend.reductions.push_back({Home::kAllocated, Home::kFile});
  }
  backend.swaps = backend.exchanges = {{Home::kAllocated, Home::kAllocated}};
}

}  // namespace tandem::test
