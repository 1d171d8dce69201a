// A copy of a boundary that fails, on its way out or back, over the link or on the disk: the visit
// that awaits it throws what happened, and nothing else waits for it.
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/accelerator.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/rank/boundaries.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/throws_error.hpp"
#include "tests/support/toy/model.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kElements = 3000;
constexpr std::size_t kSegments = 5;

std::vector<std::string> names() { return std::vector<std::string>(kSegments, "input of \"b\""); }

/// Boundary 1 of a model, beside a simulated device or on the CPU.
struct Journey {
  EventLoop loop{EventLoop::Options{.name = "boundaries"}};
  CpuPool pool{loop, {.threads = 1}};
  Model model = toy::model();
  std::unique_ptr<Accelerator> accelerator;
  std::unique_ptr<CollectiveBackend> backend;
  test::TempDir folder;
  FaultyFiles* faults = nullptr;
  std::optional<FileIo> io;
  Scope scope{loop, "boundaries"};
  std::optional<ComputeQueue> compute;
  std::optional<Boundaries> boundaries;
  std::string at = "the start";

  explicit Journey(DeviceKind kind) {
    std::unique_ptr<BoundaryPlace> place;
    if (kind == DeviceKind::kSim) {
      Alone alone;
      accelerator = std::make_unique<Accelerator>(loop, 0, SimSpec{});
      backend = accelerator->connect(alone, loop, pool);
      const std::vector<std::string> all = names();
      place =
          std::make_unique<HostBoundaries>(*accelerator, std::vector<Name>(all.begin(), all.end()));
    } else {
      auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
      faults = faulty.get();
      io.emplace(loop, std::move(faulty));
      place = std::make_unique<FileBoundaries>(FileBoundaries::Options{
          .io = &*io, .copies = &pool, .path = folder / "boundary", .names = names()});
    }
    compute.emplace(scope, model, accelerator.get(), true);
    boundaries.emplace(Boundaries::Options{.scope = &scope,
                                           .compute = &*compute,
                                           .accelerator = accelerator.get(),
                                           .place = std::move(place),
                                           .leaving = 1,
                                           .segments = kSegments});
  }

  /// As a step has it; `at` says how far it came.
  void go() { loop.run(&Journey::there_and_back, this); }

 private:
  static Task<> there_and_back(Journey* self) {
    Boundaries& boundaries = *self->boundaries;
    co_await self->compute->prepare({}, 1);
    const at::Tensor tensor = at::arange(kElements, at::kFloat);
    at::Tensor input = tensor.clone();
    boundaries.made(1, input);
    boundaries.leave(1);
    self->at = "its way out";
    co_await boundaries.left(1);
    boundaries.free(1, input);
    self->at = "its way back";
    co_await boundaries.there(1);
    boundaries.take(1, input);
    boundaries.gone(1);
    self->at = "the end";
    EXPECT_TRUE(at::equal(input.detach(), tensor));
  }
};

TEST(BoundaryFaults, WithoutOneABoundaryIsThereAgain) {
  for (const DeviceKind kind : {DeviceKind::kSim, DeviceKind::kCpu}) {
    Journey journey(kind);
    journey.go();
    EXPECT_EQ(journey.at, "the end");
  }
}

TEST(BoundaryFaults, ACopyThatFailsIsThrownWhereItIsAwaited) {
  for (const std::uint64_t copy : {0, 1}) {
    Journey journey(DeviceKind::kSim);
    static_cast<SimDevice&>(journey.accelerator->device()).fail_copy(copy);
    EXPECT_THAT([&] { journey.go(); },
                ThrowsError(ExitCode::kFailure, HasSubstr("of 12000 bytes failed")));
    EXPECT_EQ(journey.at, copy == 0 ? "its way out" : "its way back");
  }
}

TEST(BoundaryFaults, ADiskThatFailsNamesTheBoundary) {
  for (const auto& [kind, verb, number] :
       {std::tuple{FileRequest::Kind::kWrite, "cannot write", EIO},
        std::tuple{FileRequest::Kind::kWrite, "cannot write", ENOSPC},
        std::tuple{FileRequest::Kind::kRead, "cannot read", EIO}}) {
    Journey journey(DeviceKind::kCpu);
    journey.faults->set_rule([kind, number](const FileOp& op, std::uint64_t) {
      return FileFault{.error_number = op.request.kind == kind ? number : 0};
    });
    EXPECT_THAT([&] { journey.go(); },
                ThrowsError(ExitCode::kFailure, AllOf(HasSubstr(verb), HasSubstr("input of \"b\""),
                                                      HasSubstr(std::strerror(number)))));
    EXPECT_EQ(journey.at, kind == FileRequest::Kind::kWrite ? "its way out" : "its way back");
  }
}

TEST(BoundaryFaults, AFullDiskIsRefused) {
  Journey journey(DeviceKind::kCpu);
  journey.faults->set_rule([](const FileOp& op, std::uint64_t) {
    return FileFault{.error_number = op.request.kind == FileRequest::Kind::kReserve ? ENOSPC : 0};
  });
  EXPECT_THAT([&] { journey.go(); }, ThrowsError(ExitCode::kRefused, HasSubstr("--nvme_path")));
  EXPECT_EQ(journey.at, "its way out");
}

}  // namespace
}  // namespace tandem
