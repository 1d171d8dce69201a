// Updates of state in a file have the bits of those in memory, in every layout; the file has no
// name, what no range covers stays as it is, and a fault names the unit.
#include "actors/optimizer/file_updates.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/io/faulty_files.hpp"
#include "runtime/scope.hpp"
#include "runtime/util/round_up.hpp"
#include "tests/actors/kernels/update/packed_reference.hpp"
#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

using test::LayoutCase;
using test::LayoutShard;

constexpr std::size_t kSlice = FileUpdates::kElementsAlignment;
constexpr std::size_t kElements = kSlice + 40'001;
constexpr std::size_t kStageBytes = 18 * kSlice;
// With gaps in the first slice: frozen parameters between two groups.
const std::vector<UpdateRange> kRanges = {
    {0, 1024, 0}, {1152, kSlice / 2 + 4992, 1}, {kSlice / 2 + 5120, kElements, 0}};

struct Case {
  const char* name;
  UpdateConfig config;
  LayoutCase types;
  bool weights = false;  // lie in the file, with gradients
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
const UpdateConfig kAdamW{.kind = OptimizerKind::kAdam, .lr = 1e-2, .weight_decay = 0.1, .seed = 5};
const Case kCases[] = {
    {"fp32", kAdamW, {StateLayout::kFp32, DType::kF32, DType::kF32}},
    {"fp32_bf16", kAdamW, {StateLayout::kFp32, DType::kBF16, DType::kF32}},
    {"fp32_bf16_weights", kAdamW, {StateLayout::kFp32, DType::kBF16, DType::kBF16}, true},
    {"split", kAdamW, {StateLayout::kSplit, DType::kBF16, DType::kF32}},
    {"split_weights", kAdamW, {StateLayout::kSplit, DType::kBF16, DType::kF32}, true},
    {"bf16", kAdamW, {StateLayout::kBf16, DType::kBF16, DType::kBF16}},
    {"int8", kAdamW, {StateLayout::kInt8, DType::kBF16, DType::kBF16}},
    {"lion_int8",
     {.kind = OptimizerKind::kLion, .lr = 1e-3, .seed = 5},
     {StateLayout::kInt8, DType::kF32, DType::kF32}},
};

/// A shard, and its like with master and moments in a file.
struct FileWorld {
  test::TempDir folder;
  EventLoop loop{EventLoop::Options{.name = "file updates"}};
  CpuPool pool{loop, {.threads = 2}};
  FaultyFiles* faults = nullptr;
  std::optional<FileIo> io;
  LayoutShard expected;
  LayoutShard got;
  PlacedState unit;
  std::optional<StateFile> file;
  HostBuffer buffers{FileUpdates::kSlices * kStageBytes};
  std::optional<FileUpdates> updates;

  /// `ahead`: with a shadow in the file.
  explicit FileWorld(const Case& c, bool ahead = false)
      : expected(c.config, c.types, kElements, 7), got(c.config, c.types, kElements, 7) {
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    faults = faulty.get();
    io.emplace(loop, std::move(faulty));
    const StateSizes sizes = state_sizes(c.types.layout, c.config, c.types.weight, kElements);
    const std::size_t state = sizes.total(kFileStateAlignment);
    const std::size_t weights = round_up(kElements * bytes_of(c.types.weight), kFileStateAlignment);
    const std::size_t gradients =
        round_up(kElements * bytes_of(c.types.gradient), kFileStateAlignment);
    file.emplace((ahead ? 2 * state : state) + (c.weights ? weights + gradients : 0));
    unit = {.buffers = placed(Place::kHost, got.buffers), .shadow = {}, .ranges = kRanges};
    place_state(unit.buffers, c.types.layout, c.config, c.types.weight, kElements, file->data(),
                kFileStateAlignment);
    if (ahead) {
      PlacedBuffers other = unit.buffers;
      place_state(other, c.types.layout, c.config, c.types.weight, kElements, file->data() + state,
                  kFileStateAlignment);
      unit.shadow = {.master = other.master, .state = {other.state[0], other.state[1]}};
    }
    if (c.weights) {
      unit.buffers.weight = file->data() + state;
      unit.buffers.gradient = file->data() + state + weights;
    }
  }
  void open() {
    loop.run(
        [](FileWorld* w) -> Task<> {
          co_await w->file->open({.io = &*w->io,
                                  .pool = &w->pool,
                                  .path = w->folder / "state",
                                  .piece_bytes = std::size_t{256} << 10});
        },
        this);
    updates.emplace(FileUpdates::Options{.file = &*file,
                                         .pool = &pool,
                                         .chunk_elements = kSlice / 4,
                                         .slice_chunks = 4,
                                         .buffers = buffers.data(),
                                         .buffer_bytes = kStageBytes});
  }
  /// Both ways between the shard's memory and the file, array by array.
  void move(bool in) {
    UpdatedUnit memory = {.buffers = got.buffers, .shadow = {}, .ranges = kRanges};
    visit_arrays(
        unit, UpdatePass::kInPlace,
        [&]<class T>(const Placed<T>& there, const ArrayUse& use, T*& array) {
          auto* here = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(array));
          if (there.place() != Place::kFile || here == nullptr) {  // or a shadow
            return;
          }
          move_array(Placed<const std::byte>(there), here, use.bytes_of(kElements), in);
        },
        memory);
  }
  void move_array(Placed<const std::byte> there, std::byte* here, std::size_t bytes, bool in) {
    const HostBuffer copy(bytes);
    if (in) {  // memory no longer holds the state
      std::memcpy(copy.data(), here, bytes);
      std::memset(here, 0xab, bytes);
    }
    loop.run(
        [](StateFile* of, StateFile::Transfer transfer, bool writes) -> Task<> {
          if (writes) {
            co_await of->write({transfer});
          } else {
            co_await of->read({transfer});
          }
        },
        &*file, StateFile::Transfer{there, copy.data(), bytes}, in);
    if (!in) {
      std::memcpy(here, copy.data(), bytes);
    }
  }
  /// Both slices at the same time.
  void run(const UpdateStep* steps, UpdatePass pass = UpdatePass::kInPlace) {
    loop.run(
        [](FileUpdates* runner, UpdateSlice whole) -> Task<> {
          Scope scope(EventLoop::current(), "slices");
          for (std::size_t begin = 0; begin < whole.end; begin += kSlice) {
            UpdateSlice part = whole;
            part.begin = begin;
            part.end = std::min(begin + kSlice, whole.end);
            scope.spawn(
                "slice",
                [](FileUpdates* on, UpdateSlice slice) -> Task<> { co_await on->run(slice); },
                runner, part);
          }
          co_await scope.join();
        },
        &*updates,
        UpdateSlice{
            .name = "block 3", .unit = &unit, .steps = steps, .pass = pass, .end = kElements});
  }
};

class FileUpdatesOf : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Layouts, FileUpdatesOf, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(FileUpdatesOf, HaveTheBitsOfMemory) {
  FileWorld world(GetParam());
  world.open();
  EXPECT_TRUE(std::filesystem::is_empty(world.folder.path())) << "the file has lost its name";
  // Short transfers are carried through.
  world.faults->set_rule([](const FileOp&, std::uint64_t call) {
    return FileFault{.bytes_max = call % 5 == 0 ? std::size_t{8192} : 0};
  });
  world.move(true);
  for (const int step : {1, 2}) {
    const UpdateStep steps[] = {UpdateStep::make(world.got.config, step, 1.0),
                                UpdateStep::make(world.got.config, step, 0.5)};
    const UpdatedUnit here = {.buffers = world.expected.buffers, .shadow = {}, .ranges = kRanges};
    run_update_pass(UpdatePass::kInPlace, here, steps, 0, kElements);
    world.run(steps);
  }
  world.move(false);
  EXPECT_TRUE(world.got == world.expected);
  const std::uint64_t state = world.file->size_bytes();
  EXPECT_LE(world.file->bytes_read(), 3 * state + 64 * StateFile::kAlignment);
}

TEST(FileUpdates, AheadOfTheVerdictTheFileKeepsTheOldState) {
  FileWorld world(kCases[1], /*ahead=*/true);
  world.open();
  world.move(true);
  const auto steps_of = [&](int step, double scale) {
    return std::vector{UpdateStep::make(world.got.config, step, scale),
                       UpdateStep::make(world.got.config, step, scale / 2)};
  };
  const auto expect = [&](const std::vector<UpdateStep>& steps) {
    const UpdatedUnit here = {.buffers = world.expected.buffers, .shadow = {}, .ranges = kRanges};
    run_update_pass(UpdatePass::kInPlace, here, steps.data(), 0, kElements);
  };
  for (const int step : {1, 2}) {  // there and back between the two places
    world.run(steps_of(step, 1).data(), UpdatePass::kSpeculative);
    commit_speculative(world.unit);
    expect(steps_of(step, 1));
  }
  world.run(steps_of(3, 1).data(), UpdatePass::kSpeculative);
  world.run(steps_of(3, 0.25).data(), UpdatePass::kRedo);
  expect(steps_of(3, 0.25));
  world.run(steps_of(4, 1).data(), UpdatePass::kSpeculative);
  const auto same_weights = [&] {
    return std::ranges::equal(world.got.weight.span(), world.expected.weight.span());
  };
  EXPECT_FALSE(same_weights()) << "they are the next ones";
  world.run(nullptr, UpdatePass::kRollback);
  world.move(false);
  EXPECT_TRUE(world.got == world.expected);
}

TEST(FileUpdates, AWeightBesideItsMasterIsWrittenAndNotRead) {
  FileWorld world(kCases[2]);
  world.open();
  world.unit.ranges = {{0, kElements, 0}};
  const UpdateStep steps[] = {UpdateStep::make(kAdamW, 1, 1.0)};
  world.run(steps);
  constexpr std::size_t kState = kElements * (sizeof(float) * 3);
  constexpr std::size_t kHalf = kElements * 2;  // 2 bytes per element: weight, and gradient
  constexpr std::size_t kBlocks = 16 * StateFile::kAlignment;
  EXPECT_LE(world.file->bytes_read(), kState + kHalf + kBlocks);
  EXPECT_GE(world.file->bytes_read(), kState + kHalf);
  EXPECT_GE(world.file->bytes_written(), kState + kHalf);
}

TEST(FileUpdates, WhatWasNeverWrittenReadsAsZeros) {
  FileWorld world(kCases[0]);
  world.open();
  world.move(false);
  EXPECT_EQ(world.got.state(1), std::vector<float>(kElements, 0.0F));
}

TEST(FileUpdates, AFaultNamesTheUnit) {
  const UpdateStep steps[] = {UpdateStep::make(kAdamW, 1, 1.0), UpdateStep::make(kAdamW, 1, 1.0)};
  for (const auto& [kind, verb, number] :
       {std::tuple{FileRequest::Kind::kRead, "cannot read", EIO},
        std::tuple{FileRequest::Kind::kWrite, "cannot write", EIO},
        std::tuple{FileRequest::Kind::kWrite, "cannot write", ENOSPC}}) {
    FileWorld world(kCases[1]);
    world.open();
    world.faults->set_rule([kind, number, n = 0](const FileOp& op, std::uint64_t) mutable {
      return FileFault{.error_number = op.request.kind == kind && ++n == 9 ? number : 0};
    });
    test::expect_error([&] { world.run(steps); }, {verb, "\"block 3\"", std::strerror(number)},
                       ExitCode::kFailure);
  }
}

TEST(FileUpdates, AFullDiskRefusesTheStart) {
  FileWorld world(kCases[1]);
  world.faults->set_rule([](const FileOp& op, std::uint64_t) {
    return FileFault{.error_number = op.request.kind == FileRequest::Kind::kReserve ? ENOSPC : 0};
  });
  test::expect_error([&] { world.open(); }, {"--nvme_path", "cannot reserve"}, ExitCode::kRefused);
  EXPECT_TRUE(std::filesystem::is_empty(world.folder.path()));
}

}  // namespace
}  // namespace tandem
