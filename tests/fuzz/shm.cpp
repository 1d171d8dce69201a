// A hostile rank on the same host: its hello, and what it writes into its shared memory while this
// rank runs a collective with it.
//
// Bit 7 of the first byte: the others lie over an honest hello (bit 6: with a proof of the whole;
// bit 5: without a descriptor). Else the first byte chooses the operation, and the others lie over
// the peer's control block in pieces of eight bytes, each behind two that say where.
#include <atomic>
#include <cstring>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "actors/collectives/shm/shm_backend.hpp"
#include "runtime/cpu_pool.hpp"
#include "runtime/event_loop.hpp"
#include "runtime/util/error.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/support/strangers/shm_hello.hpp"

namespace tandem::fuzz {
namespace {

using test::call_rank_0;
using test::ShmHello;

constexpr std::size_t kArenaBytes = std::size_t{1} << 20;
constexpr std::size_t kOperandBytes = 24'576;
const std::string kJob = std::to_string(getpid()) + " runs a job of a long name for fuzzing";

/// This rank: 0 of 2. The hostile one calls it from a thread of its own.
struct Rank {
  EventLoop loop{{.name = "rank 0", .stall_limit = {}}};
  CpuPool pool{loop, {.threads = 1}};

  [[nodiscard]] std::unique_ptr<ShmBackend> meet() {
    return ShmBackend::connect(loop, pool,
                               {.rank = 0,
                                .world = 2,
                                .job = kJob,
                                .arena_bytes = kArenaBytes,
                                .connect_timeout = std::chrono::seconds(5),
                                .timeout = std::chrono::milliseconds(20)});
  }
};

Task<> operate(ShmBackend* backend, std::size_t kind, std::byte* memory) {
  std::byte* const result = memory + 2 * kOperandBytes;
  const ReduceArguments reduce{.block = memory,
                               .block_type = kind % 2 == 0 ? DType::kF32 : DType::kBF16,
                               .accumulator = result,
                               .shard_elements = kOperandBytes / sizeof(float),
                               .want_norm = true};
  switch (kind % 14 / 2) {
    case 0:
      co_await backend->all_gather({memory, result, kOperandBytes});
      break;
    case 1:
      co_await backend->all_gather({memory, result, 1000});
      break;
    case 2:
      co_await backend->all_to_all({memory, result, kOperandBytes});
      break;
    case 3:
      co_await backend->all_to_all({memory, result, 500});
      break;
    case 4:
      (void)co_await backend->reduce_scatter_add(reduce);
      break;
    case 5:
      (void)co_await backend->all_reduce_add(reduce);
      break;
    default:
      co_await backend->exchange({memory, result, 100});
  }
}

/// Peers' failures are the end of an operation beside a hostile rank.
template <class Body>
void expect_peer_lost(Body body) {
  try {
    body();
  } catch (const Error& error) {
    expect(error.code() == ExitCode::kPeer, "a hostile rank is a lost peer");
  }
}

void say_hello(Rank& rank, std::string_view input) {
  const auto mode = static_cast<unsigned char>(input.front());
  ShmHello hello;
  input.remove_prefix(1);
  std::memcpy(static_cast<void*>(&hello), input.data(), std::min(input.size(), sizeof(hello)));
  if ((mode & 0x40) != 0) {
    hello.prove(kJob);
  }
  const OwnedDescriptor memory(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  expect(::ftruncate(memory.get(), 1 << 20) == 0, "a memfd has the size it is given");
  std::thread hostile([&] {
    const OwnedDescriptor socket = call_rank_0(kJob);
    const auto bytes = std::as_bytes(std::span(&hello, 1));
    if ((mode & 0x20) != 0) {
      (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    } else {
      (void)send_with_descriptor(socket.get(), bytes, memory.get());
    }
  });
  expect_peer_lost([&] { (void)rank.meet(); });
  hostile.join();
}

/// Rank 1 of 2: agrees with what rank 0 begins, but for the bytes that lie over that.
class HostileRank {
 public:
  explicit HostileRank(std::string_view patches) : patches_(patches), thread_([this] { run(); }) {}
  ~HostileRank() {
    ended_ = true;
    thread_.join();
  }
  HostileRank(const HostileRank&) = delete;

 private:
  void run() {
    ShmArena arena(kArenaBytes);
    auto* own = new (arena.allocate(sizeof(ShmControl))) ShmControl();
    const std::vector<ShmPeer> peers = bootstrap_shm(
        {.rank = 1, .world = 2, .job = kJob, .timeout = std::chrono::seconds(5)}, arena);
    const auto& other = *reinterpret_cast<const ShmControl*>(peers[0].memory->data());
    std::array<std::uint64_t, ShmControl::kChannels> seen{};
    while (!ended_) {
      bool began = false;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const std::uint64_t arrived = other.channels[i].counters[ShmChannel::kArrived].value;
        began = began || arrived != seen[i];
        seen[i] = arrived;
      }
      if (!began) {
        std::this_thread::yield();
        continue;
      }
      for (std::size_t i = 0; i < seen.size(); ++i) {
        own->channels[i].headers = other.channels[i].headers;
      }
      lay_patches_over(*own);
      for (ShmChannel& channel : own->channels) {
        for (ShmCounter& counter : channel.counters) {
          counter.value.store(~std::uint64_t{0});  // all that is waited for has come
        }
      }
      (void)::send(peers[0].socket.get(), "x", 1, MSG_NOSIGNAL);
    }
  }
  void lay_patches_over(ShmControl& control) const {
    std::string_view left = patches_;
    for (; left.size() >= 10; left.remove_prefix(10)) {
      std::uint16_t where = 0;
      std::memcpy(&where, left.data(), sizeof(where));
      std::memcpy(reinterpret_cast<std::byte*>(&control) + where * 8 % (sizeof(ShmControl) - 8),
                  left.data() + 2, 8);
    }
  }

  std::string_view patches_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

void run_beside_hostile(Rank& rank, std::string_view input) {
  const std::size_t kind = static_cast<unsigned char>(input.front());
  const HostileRank hostile(input.substr(1));
  expect_peer_lost([&] {
    const auto backend = rank.meet();
    std::byte* const memory = backend->allocate(6 * kOperandBytes);
    rank.loop.run(&operate, backend.get(), kind, memory);
  });
}

}  // namespace

void read(std::string_view input) {
  static Rank rank;
  if (input.empty()) {
    return;
  }
  if ((static_cast<unsigned char>(input.front()) & 0x80) != 0) {
    say_hello(rank, input);
  } else {
    run_beside_hostile(rank, input);
  }
}

}  // namespace tandem::fuzz
