// A copy of a boundary that fails, on its way out or back, over the link or on the disk: the visit
// that awaits it throws what happened, and nothing else waits for it.
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/device/accelerator.hpp"
#include "engine/distributed/communicator.hpp"
#include "engine/rank/boundaries.hpp"
#include "engine/types/options.hpp"
#include "runtime/device/sim_device.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/util/error.hpp"
#include "tests/support/io_support.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kElements = 3000;
constexpr std::size_t kSegments = 5;

std::vector<std::string> names() { return std::vector<std::string>(kSegments, "input of \"b\""); }

/// A micro-batch that has made boundary 1.
class OneBoundary final : public MicroBatch {
 public:
  OneBoundary() : here_(kElements) { std::iota(here_.begin(), here_.end(), 0.0F); }
  [[nodiscard]] BatchExtents extents() const override { return {}; }
  void forward(std::size_t, const VisitMemory&) override {}
  void read_loss(float*) override {}
  void backward(std::size_t, const VisitMemory&, double) override {}
  void infer(std::size_t, const VisitMemory&) override {}
  [[nodiscard]] std::size_t boundary_bytes(std::size_t) const override {
    return kElements * sizeof(float);
  }
  [[nodiscard]] std::span<std::byte> keep_boundary(std::size_t) override {
    return std::as_writable_bytes(std::span(here_));
  }
  void free_boundary(std::size_t) override { here_.clear(); }
  [[nodiscard]] std::span<std::byte> make_boundary(std::size_t, std::byte* room) override {
    here_.resize(room == nullptr ? kElements : 0);
    back_ =
        room == nullptr ? std::span(here_) : std::span(reinterpret_cast<float*>(room), kElements);
    return std::as_writable_bytes(back_);
  }
  void take_boundary(std::size_t) override {
    for (std::size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(back_[i], static_cast<float>(i));
    }
    is_taken = true;
  }
  bool is_taken = false;

 private:
  std::vector<float> here_;
  std::span<float> back_;
};

/// Boundary 1 of a model, beside a simulated device or on the CPU.
struct Journey {
  EventLoop loop{EventLoop::Options{.name = "boundaries"}};
  CpuPool pool{loop, {.threads = 1}};
  Model model;
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
    co_await self->compute->prepare({}, 1, {});
    const auto batch = std::make_shared<OneBoundary>();
    boundaries.made(1, *batch);
    boundaries.leave(1);
    self->at = "its way out";
    co_await boundaries.left(1);
    boundaries.free(1, *batch);
    self->at = "its way back";
    co_await boundaries.there(1, batch);
    boundaries.take(1, *batch);
    boundaries.gone(1);
    self->at = "the end";
    EXPECT_TRUE(batch->is_taken);
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
