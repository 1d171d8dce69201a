// Asio: coroutines with channels, and bare callbacks with post.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/experimental/channel.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/use_awaitable.hpp>
#include <benchmark/benchmark.h>

#include "bench/runtime/peers.hpp"

namespace tandem::bench {
namespace {

using Channel = asio::experimental::channel<void(asio::error_code, std::int64_t)>;

asio::awaitable<void> play(Channel& in, Channel& out, bool begins) {
  if (begins) {
    co_await out.async_send({}, 0, asio::use_awaitable);
  }
  for (std::int64_t i = 0; i < kRound / 2; ++i) {
    const std::int64_t value = co_await in.async_receive(asio::use_awaitable);
    if (!begins || i + 1 < kRound / 2) {
      co_await out.async_send({}, value + 1, asio::use_awaitable);
    }
  }
}

void ping_pong_channel(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context context(1);
    Channel there(context, 1);
    Channel back(context, 1);
    asio::co_spawn(context, play(back, there, true), asio::detached);
    asio::co_spawn(context, play(there, back, false), asio::detached);
    context.run();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}

struct Poster {
  void hit(std::int64_t left) {
    if (left == 0) {
      done = true;
      other->done = true;
      context.stop();
      other->context.stop();
    } else {
      asio::post(other->context, [to = other, left] { to->hit(left - 1); });
    }
  }
  asio::io_context& context;
  Poster* other = nullptr;
  bool done = false;
};

void ping_pong_post(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context context(1);
    Poster a{context};
    Poster b{context, &a};
    a.other = &b;
    asio::post(context, [&a] { a.hit(kRound); });
    context.run();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}

void ping_pong_post_far(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context here(1);
    asio::io_context there(1);
    const auto keep_here = asio::make_work_guard(here);
    const auto keep_there = asio::make_work_guard(there);
    Poster a{here};
    Poster b{there, &a};
    a.other = &b;
    std::thread thread([&there] { there.run(); });
    asio::post(here, [&a] { a.hit(kFarRound); });
    here.run();
    thread.join();
  }
  state.SetItemsProcessed(state.iterations() * kFarRound);
}

void mailbox_post(benchmark::State& state, int senders) {
  for (auto _ : state) {
    asio::io_context context;
    std::int64_t left = kSends * senders;
    const auto keep = asio::make_work_guard(context);
    measure_senders(
        state, senders,
        [&context, &left](std::int64_t) {
          asio::post(context, [&context, &left] {
            if (--left == 0) {
              context.stop();
            }
          });
        },
        [&] { context.run(); });
  }
  state.SetItemsProcessed(state.iterations() * kSends * senders);
}

[[gnu::noinline]] asio::awaitable<std::int64_t> add_one(std::int64_t value) { co_return value + 1; }

asio::awaitable<void> calls() {
  std::int64_t value = 0;
  for (std::int64_t i = 0; i < kRound; ++i) {
    value = co_await add_one(value);
  }
  benchmark::DoNotOptimize(value);
}
asio::awaitable<void> switches(asio::io_context& context) {
  for (std::int64_t i = 0; i < kRound; ++i) {
    co_await asio::post(context, asio::use_awaitable);
  }
}
asio::awaitable<void> nothing() { co_return; }

void call(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context context(1);
    asio::co_spawn(context, calls(), asio::detached);
    context.run();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}
void switch_local(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context context(1);
    asio::co_spawn(context, switches(context), asio::detached);
    context.run();
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}
void spawn(benchmark::State& state) {
  for (auto _ : state) {
    asio::io_context context(1);
    for (std::int64_t i = 0; i < kRound; i += 100) {
      for (int k = 0; k < 100; ++k) {
        asio::co_spawn(context, nothing(), asio::detached);
      }
      context.run();
      context.restart();
    }
  }
  state.SetItemsProcessed(state.iterations() * kRound);
}

}  // namespace

void register_asio() {
  const auto add = [](const char* name, const char* library, void (*function)(benchmark::State&)) {
    benchmark::RegisterBenchmark((std::string(name) + "/" + library).c_str(), function)
        ->UseRealTime();
  };
  add(kPingPong, "Asio coroutines", &ping_pong_channel);
  add(kPingPong, "Asio post", &ping_pong_post);
  add(kPingPongFar, "Asio post", &ping_pong_post_far);
  for (const int senders : {1, 2, 4}) {
    benchmark::RegisterBenchmark(
        (std::string(kMailbox) + " " + std::to_string(senders) + "/Asio post").c_str(),
        [senders](benchmark::State& state) { mailbox_post(state, senders); })
        ->UseManualTime();
  }
  add(kCall, "Asio coroutines", &call);
  add(kSwitch, "Asio coroutines", &switch_local);
  add(kSpawn, "Asio coroutines", &spawn);
}

}  // namespace tandem::bench
