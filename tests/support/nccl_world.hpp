// tests/support/nccl_world.hpp — ranks with a GPU each, all of them fakes, on one loop and in
// virtual time.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/collectives/nccl/nccl_backend.hpp"
#include "actors/gpu/norm_limbs.hpp"
#include "runtime/scope.hpp"
#include "tests/support/collective_operations.hpp"
#include "tests/support/fakes/fake_nccl.hpp"

namespace tandem::test {

/// The messages between the ranks of one process. Any thread.
class FakePeers {
 public:
  std::uint32_t world = 1;

  class OfRank final : public NcclPeers {
   public:
    OfRank(FakePeers& all, std::uint32_t rank) : all_(all), rank_(rank) {}
    void decide(std::uint64_t turn, const NcclLaunch& launch) noexcept override {
      const Uncounted uncounted;
      const std::lock_guard lock(all_.mutex_);
      TANDEM_CHECK(turn == all_.decided_.size(), "turns are decided in their order");
      all_.decided_.push_back(launch);
    }
    std::optional<NcclLaunch> decided(std::uint64_t turn) noexcept override {
      const std::lock_guard lock(all_.mutex_);
      return turn < all_.decided_.size() ? std::optional(all_.decided_[turn]) : std::nullopt;
    }
    void has_begun(std::uint64_t turn) noexcept override {
      const std::lock_guard lock(all_.mutex_);
      all_.begun_[rank_] = turn;
    }
    std::optional<std::uint32_t> behind(std::uint64_t turn) noexcept override {
      const std::lock_guard lock(all_.mutex_);
      for (std::uint32_t rank = 0; rank < all_.world; ++rank) {
        if (all_.begun_[rank] < turn) {
          return rank;
        }
      }
      return std::nullopt;
    }
    void announce_failure(std::uint32_t failed_rank, const std::string& cause) noexcept override {
      all_.lose(failed_rank, cause);
    }
    std::optional<NcclLoss> loss() noexcept override {
      const std::lock_guard lock(all_.mutex_);
      return all_.silent_ ? std::nullopt : all_.loss_;
    }

   private:
    FakePeers& all_;
    std::uint32_t rank_;
  };

  void lose(std::uint32_t failed_rank, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    if (!loss_) {
      loss_ = NcclLoss{failed_rank, cause};
    }
  }
  /// No rank hears of another one's failure.
  void be_silent() { silent_ = true; }

 private:
  std::mutex mutex_;
  std::vector<NcclLaunch> decided_;
  std::array<std::uint64_t, 8> begun_{};
  std::optional<NcclLoss> loss_;
  bool silent_ = false;
};

/// The kernels as the CPU's.
inline const SumKernels& fake_kernels() {
  static constexpr auto kAddNorm = [](const RankOrderSum& s) {
    GradientNorm norm;
    const bool wide = s.accumulator != nullptr;
    add_norm(wide ? s.accumulator : s.copy, wide ? DType::kF32 : static_cast<DType>(s.block_type),
             0, s.elements, norm);
    const auto words = norm.sum_of_squares.limbs();
    for (std::size_t k = 0; k < words.size(); ++k) {
      s.norm[k] += words[k];
    }
    if (norm.first_bad_element >= 0) {
      s.norm[norm::kFirstBad] =
          std::min(s.norm[norm::kFirstBad],
                   static_cast<std::uint64_t>(s.first_element + norm.first_bad_element));
    }
  };
  static constexpr auto kAdd = [](const RankOrderSum& s) {
    const auto type = static_cast<DType>(s.block_type);
    TANDEM_CHECK(FakeCuda::of_test().is_reached(s.own, s.elements * bytes_of(type)),
                 "a kernel reaches its operands");
    if (s.accumulator == nullptr && s.copy != s.own) {
      std::memcpy(s.copy, s.own, s.elements * bytes_of(type));
    }
    AccumulateMode mode = s.add ? AccumulateMode::kAdd : AccumulateMode::kOverwrite;
    for (std::uint32_t r = 0; r < s.world && s.accumulator != nullptr; ++r) {
      const void* part =
          r == s.rank ? s.own : static_cast<const std::byte*>(s.others) + r * s.stride_bytes;
      accumulate(s.accumulator, part, type, 0, s.elements, mode);
      mode = AccumulateMode::kAdd;
    }
    if (s.norm != nullptr) {
      kAddNorm(s);
    }
  };
  static constexpr SumKernels kFake{
      .add_in_rank_order =
          [](const RankOrderSum& sum, void* stream) {
            const Uncounted uncounted;
            FakeCuda::of_test().launch(
                stream,
                {.ready = {}, .cost = std::chrono::microseconds(5), .run = [sum] { kAdd(sum); }});
            return 0;
          },
      .clear_norm =
          [](std::uint64_t* words, void* stream) {
            const Uncounted uncounted;
            FakeCuda::of_test().launch(
                stream, {.ready = {}, .cost = std::chrono::microseconds(1), .run = [words] {
                           std::memset(words, 0, norm::kSumLimbs * sizeof(*words));
                           words[norm::kFirstBad] = ~std::uint64_t{0};
                         }});
            return 0;
          }};
  return kFake;
}

struct NcclRank {
  std::unique_ptr<CudaDevice> device;
  std::shared_ptr<FakePeers::OfRank> peers;
  std::unique_ptr<NcclBackend> backend;
  std::string error;  // the error of its last body
  int code = 0;
  std::uint32_t failed_rank = 0;
  TimePoint ended;

  /// Filled device memory.
  DeviceBuffer buffer(std::size_t bytes, const void* content = nullptr) const {
    DeviceBuffer made = device->allocate(std::max<std::size_t>(bytes, 1));
    if (content != nullptr) {
      std::memcpy(made.data(), content, bytes);  // device memory of the fake is the host's
    }
    return made;
  }
};

/// Operation `kind` of tests/support/collective_operations.hpp, `times` times, in memory that is
/// given back when it has ended, however it ends.
inline Task<> operate_times(NcclRank* rank, std::size_t kind, int times) {
  const DeviceBuffer block = rank->buffer(Operands::kBytes);
  const DeviceBuffer into = rank->buffer(Operands::kBytes);
  co_await operate(rank->backend.get(), {block.data(), into.data()}, kind, times);
}

/// Members in the order in which they have to live.
struct NcclWorld {
  using Body = std::function<Task<>(NcclRank&)>;

  ManualClock clock;
  EventLoop loop{{.name = "nccl test", .clock = &clock}};
  FakeCuda cuda{clock};
  FakeNccl nccl;
  FakePeers peers;
  std::vector<std::string> process_ends;  // why
  std::vector<std::thread> aborting;
  bool abort_on_threads = false;
  std::vector<NcclRank> ranks;
  Scope scope{loop, "ranks"};

  explicit NcclWorld(std::uint32_t world) : ranks(world) { peers.world = world; }
  ~NcclWorld() {
    if (!process_ends.empty()) {
      cuda.lose();  // with its process a device's work is gone
    }
    nccl.let_abort_go();
    for (std::thread& thread : aborting) {
      thread.join();
    }
  }

  [[nodiscard]] NcclBackend::Options options(std::uint32_t rank) {
    NcclBackend::Options made;
    made.rank = rank;
    made.world = static_cast<std::uint32_t>(ranks.size());
    made.api = made.world > 1 ? &FakeNccl::api() : nullptr;
    made.kernels = &fake_kernels();
    made.peers = ranks[rank].peers;
    made.workspace_bytes = 64 << 10;
    made.timeout = std::chrono::seconds(2);
    made.connect_timeout = std::chrono::seconds(3);
    made.from_rank_0 = [](std::string_view key, const std::string& value) {
      // On one thread no rank can wait for rank 0's value, so each of them derives it from the key.
      std::string id(key);
      id.resize(value.size());
      return id;
    };
    made.watchdog.own_thread = false;
    made.watchdog.end_process = [this](const std::string& why) { process_ends.push_back(why); };
    made.watchdog.run_abort = [this](std::function<void()> abort) {
      if (abort_on_threads) {
        aborting.emplace_back(std::move(abort));
      } else {
        abort();
      }
    };
    return made;
  }

  /// Makes the ranks' back ends; `change` may change a rank's options.
  void connect(const std::function<void(NcclBackend::Options&)>& change = {}) {
    for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
      ranks[rank].device = std::make_unique<CudaDevice>(
          loop, FakeCuda::api(), CudaDevice::Options{.name = fmt::format("gpu {}", rank)});
      if (ranks.size() > 1) {
        ranks[rank].peers = std::make_shared<FakePeers::OfRank>(peers, rank);
      }
    }
    run([this, change](NcclRank& rank) -> Task<> { return connect_rank(this, &rank, change); });
  }
  static Task<> connect_rank(NcclWorld* world, NcclRank* rank,
                             std::function<void(NcclBackend::Options&)> change) {
    NcclBackend::Options made =
        world->options(static_cast<std::uint32_t>(rank - world->ranks.data()));
    if (change) {
      change(made);
    }
    rank->backend = co_await NcclBackend::connect(&world->loop, rank->device.get(), made);
  }

  /// Runs body(rank) for all ranks at once, as tasks, and keeps the errors that they throw.
  void run(const Body& body) {
    for (NcclRank& rank : ranks) {
      rank.error.clear();
      rank.code = 0;
      scope.spawn("rank", &guard, this, &rank, &body);
    }
    loop.run([](Scope* all) -> Task<> { co_await all->empty(); }, &scope);
  }
  static Task<> guard(NcclWorld* world, NcclRank* rank, const Body* body) {
    try {
      co_await (*body)(*rank);
    } catch (const PeerLost& lost) {
      rank->error = lost.what();
      rank->code = static_cast<int>(lost.code());
      rank->failed_rank = lost.rank();
    } catch (const std::exception& error) {
      rank->error = error.what();
      rank->code = 1;
    }
    rank->ended = world->loop.now();
  }
  [[nodiscard]] std::vector<std::string> errors() const {
    std::vector<std::string> all;
    for (const NcclRank& rank : ranks) {
      all.push_back(rank.error);
    }
    return all;
  }
};

}  // namespace tandem::test
