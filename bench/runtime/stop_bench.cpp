// The cost of stopping many that wait: per waiter it is the same, however many there are. RB7.
#include <array>
#include <cstddef>
#include <filesystem>
#include <string>

#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "bench/runtime/peers.hpp"
#include "runtime/actor.hpp"
#include "runtime/channel.hpp"
#include "runtime/io/file_io.hpp"
#include "runtime/sleep.hpp"

namespace tandem {
namespace {

using namespace std::chrono_literals;

// Spawns as many waiters as the benchmark says and counts the time from the stop until the last of
// them has ended.
template <class Wait, class... Args>
void stop_waiters(benchmark::State& state, EventLoop& loop, Wait wait, const Args&... args) {
  for (auto _ : state) {
    Scope scope(loop, "waiters");
    for (std::int64_t i = 0; i < state.range(0); ++i) {
      scope.spawn("waits", wait, args...);
    }
    loop.run([]() -> Task<> { co_await sleep_for(10ms); });  // all of them wait
    const auto begin = std::chrono::steady_clock::now();
    scope.request_stop();
    loop.run(&Scope::join, &scope);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(took.count());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

struct Never : Actor<Never, int> {
  Never() : Actor("never", 1) {}
  Task<> handle(int) { co_await sleep_for(1h, co_await current_stop_token()); }
};

void stop_senders(benchmark::State& state) {
  EventLoop loop;
  Scope actors(loop, "actors");
  Never& never = actors.start<Never>();
  stop_waiters(
      state, loop,
      [](Never::AddressType to) -> Task<> { co_await to.send(1, co_await current_stop_token()); },
      never.address());
  actors.request_stop();
  loop.run(&Scope::join, &actors);
}

void stop_receivers(benchmark::State& state) {
  EventLoop loop;
  Channel<int> channel(1);
  stop_waiters(
      state, loop,
      [](Channel<int>* from) -> Task<> {
        (void)co_await from->receive(co_await current_stop_token());
      },
      &channel);
}

void stop_sleepers(benchmark::State& state) {
  EventLoop loop;
  stop_waiters(state, loop,
               []() -> Task<> { co_await sleep_for(1h, co_await current_stop_token()); });
}

// Reads of a pipe to which nothing is written.
void stop_file_operations(benchmark::State& state, FileIo::Backend backend) {
  std::string folder = (std::filesystem::temp_directory_path() / "tandem_bench_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr || ::mkfifo((folder + "/pipe").c_str(), 0600) != 0) {
    state.SkipWithError("no pipe can be made in the folder of temporary files");
    return;
  }
  {
    EventLoop loop;
    FileIo io(loop, {.backend = backend});
    const IoFile pipe = loop.run(
        [](FileIo* files, std::string path) -> Task<IoFile> {
          co_return co_await files->open(path, OpenMode::kReadWrite);
        },
        &io, folder + "/pipe");
    stop_waiters(
        state, loop,
        [](FileIo* files, const IoFile* from) -> Task<> {
          std::array<std::byte, 8> bytes;
          (void)co_await files->read(*from, 0, bytes, co_await current_stop_token());
        },
        &io, &pipe);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace

namespace bench {
void register_stops() {
  const auto add = [](const char* name, auto function) {
    benchmark::RegisterBenchmark(name, function)
        ->Arg(10'000)
        ->Arg(40'000)
        ->Arg(160'000)
        ->UseManualTime();
  };
  add("RB7 stop of senders/Tandem", &stop_senders);
  add("RB7 stop of receivers/Tandem", &stop_receivers);
  add("RB7 stop of sleepers/Tandem", &stop_sleepers);
  add("RB7 stop of file operations/Tandem",
      [](benchmark::State& state) { stop_file_operations(state, FileIo::Backend::kAuto); });
  add("RB7 stop of file operations, threads/Tandem",
      [](benchmark::State& state) { stop_file_operations(state, FileIo::Backend::kThreads); });
}
}  // namespace bench
}  // namespace tandem
