// Asks with deadlines and stops, answered at once, late or never: every ask ends once, in time,
// with its own answer.
#include <memory>
#include <vector>

#include "runtime/actor.hpp"
#include "tests/sim/harness.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr Duration kSlack = milliseconds(2);  // between an event's time and its coroutine's turn

struct Twice {
  using Reply = std::uint64_t;
  enum class Way { kNow, kLater, kDrop, kKeep };
  std::uint64_t number = 0;
  Way way = Way::kNow;
};

struct Server : Actor<Server, Twice> {
  explicit Server(Random seeded) : Actor("server", 4), random(seeded) {}

  void handle(Twice request, ReplyTo<Twice> reply) {
    switch (request.way) {
      case Twice::Way::kNow:
        reply.send(2 * request.number);
        break;
      case Twice::Way::kLater:
        later.push_back({request.number, std::move(reply)});
        scope().spawn("answer later", &Server::answer, this, later.size() - 1,
                      Duration(microseconds(random.between(1, 400))));
        break;
      case Twice::Way::kDrop:
        break;
      case Twice::Way::kKeep:
        kept.push_back(std::move(reply));
        break;
    }
  }
  Task<> answer(std::size_t index, Duration delay) {
    co_await sleep_for(delay);
    ReplyTo<Twice> reply = std::move(later[index].reply);
    reply.send(2 * later[index].number);
  }

  struct Late {
    std::uint64_t number;
    ReplyTo<Twice> reply;
  };
  Random random;
  std::vector<Late> later;
  std::vector<ReplyTo<Twice>> kept;
};

struct Asker {
  Asker(Run& run_in, Random seeded, std::vector<Server::AddressType> servers, std::uint64_t base)
      : run(run_in), random(seeded), to(std::move(servers)), next(base) {}

  static Task<> ask_all(Asker* self, int count) {
    for (int i = 0; i < count; ++i) {
      co_await self->ask_one();
    }
  }

  Task<> ask_one() {
    const Twice request{next++, static_cast<Twice::Way>(random.below(4))};
    const Server::AddressType& server = to[random.below(to.size())];
    const bool limited = random.chance(0.6) || request.way == Twice::Way::kKeep;
    const Duration limit = microseconds(random.between(1, 500));
    const StopToken token = random.chance(0.5) ? stop.token() : StopToken();
    const TimePoint start = EventLoop::current().now();
    bool late = false;
    try {
      const TimePoint deadline = limited && random.chance(0.95) ? start + limit : TimePoint::max();
      const std::uint64_t answer = co_await server.ask(request, deadline, token);
      run.require(answer == 2 * request.number, "ask {} got the answer {}", request.number, answer);
      run.require(request.way == Twice::Way::kNow || request.way == Twice::Way::kLater,
                  "ask {} has no answer", request.number);
    } catch (const DeadlineExceeded&) {
      late = true;
    } catch (const Stopped&) {
      run.require(token.stop_requested(), "ask {} was stopped without a request", request.number);
    } catch (const ActorClosed&) {
      run.require(closing, "ask {} says closed too early", request.number);
    } catch (const Error&) {
      run.require(request.way == Twice::Way::kDrop, "ask {} was not dropped", request.number);
    }
    const Duration took = EventLoop::current().now() - start;
    run.require(!late || (took >= limit && took < limit + kSlack),
                "ask {} with a limit of {} ns ended after {} ns", request.number, limit.count(),
                took.count());
    ++ended;
  }

  Run& run;
  Random random;
  std::vector<Server::AddressType> to;
  std::uint64_t next;
  StopSource stop;
  int ended = 0;
  bool closing = false;
};

}  // namespace

std::uint64_t rehearse_asks(std::uint64_t seed) {
  const auto ranks = static_cast<std::uint32_t>(1 + Random(seed).fork("ranks").below(3));
  Run run("asks", seed, ranks);
  std::vector<std::unique_ptr<Scope>> scopes;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<Server::AddressType> addresses;
  std::vector<std::uint32_t> ranks_of_servers;
  const std::uint64_t server_count = 1 + run.random.below(2);
  for (std::uint32_t i = 0; i < server_count; ++i) {
    ranks_of_servers.push_back(static_cast<std::uint32_t>(run.random.below(ranks)));
    scopes.push_back(
        std::make_unique<Scope>(run.world.loop(ranks_of_servers.back()), Name("servers")));
    servers.push_back(std::make_unique<Server>(run.random.fork(100 + i)));
    addresses.push_back(servers.back()->address());
    servers.back()->start(*scopes.back());
  }
  std::vector<std::unique_ptr<Asker>> askers;
  const std::uint64_t asker_count = 1 + run.random.below(6);
  for (std::uint32_t i = 0; i < asker_count; ++i) {
    const auto rank = static_cast<std::uint32_t>(run.random.below(ranks));
    askers.push_back(
        std::make_unique<Asker>(run, run.random.fork(200 + i), addresses, 1000 * (i + 1)));
    scopes.push_back(std::make_unique<Scope>(run.world.loop(rank), Name("askers")));
    scopes.back()->spawn("asker", &Asker::ask_all, askers.back().get(), 30);
    Asker* asker = askers.back().get();
    run.world.after(microseconds(run.random.between(100, 8000)), rank,
                    [asker] { asker->stop.request_stop(); });
  }
  for (const auto& scope : scopes) {
    run.watched.push_back(scope.get());
  }
  // A server does not answer what it keeps: its end ends the asks that have no deadline.
  const Duration closes_after = milliseconds(run.random.between(1, 10));
  for (std::size_t i = 0; i < servers.size(); ++i) {
    run.world.after(closes_after, ranks_of_servers[i], [&, i] {
      for (const auto& asker : askers) {
        asker->closing = true;
      }
      servers[i]->close();
    });
  }
  run.until("every ask and server ends", [&] {
    for (const auto& scope : scopes) {
      if (scope->running() > 0) {
        return false;
      }
    }
    return true;
  });
  run.until("late answers arrive", [&] {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (run.world.loop(rank).has_ready_ops()) {
        return false;
      }
    }
    return true;
  });
  for (const auto& asker : askers) {
    run.require(asker->ended == 30, "an asker ended {} of 30 asks", asker->ended);
  }
  for (std::size_t i = 0; i < servers.size(); ++i) {
    run.require(addresses[i].depth() == 0, "server {} ends with {} credits out", i,
                addresses[i].depth());
  }
  run.require_quiet();
  return run.world.log().hash();
}

}  // namespace tandem::sim_test
