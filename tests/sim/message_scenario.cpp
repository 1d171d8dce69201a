// Storms of messages between ranks: every accepted message is handled once or returned once, in its
// sender's order.
#include <memory>
#include <vector>

#include "runtime/actor.hpp"
#include "tests/sim/harness.hpp"

namespace tandem::sim_test {
namespace {

using std::chrono::microseconds;

struct Fate {
  std::uint32_t sender;
  std::uint32_t receiver;
  bool accepted = false;
  bool refused = false;  // the sender was told that it was not taken
  int handled = 0;
  int gone = 0;  // destroyed
};

struct Ledger {
  Run* run;
  std::vector<Fate> fates;
};

// A message that knows whether it was destroyed.
struct Letter {
  Letter(Ledger& to, std::uint32_t number) noexcept : ledger(&to), id(number) {}
  Letter(Letter&& other) noexcept : ledger(std::exchange(other.ledger, nullptr)), id(other.id) {}
  Letter& operator=(Letter&&) = delete;
  ~Letter() {
    if (ledger != nullptr) {
      ++ledger->fates[id].gone;
    }
  }
  Ledger* ledger;
  std::uint32_t id;
};

struct Receiver : Actor<Receiver, Letter> {
  Receiver(Ledger& to, std::uint32_t number, std::uint32_t credits_in, Random seeded)
      : Actor("receiver", credits_in),
        ledger(to),
        index(number),
        credits(credits_in),
        random(seeded) {}

  Task<> handle(Letter letter) {
    Fate& fate = ledger.fates[letter.id];
    ledger.run->require(fate.receiver == index && ++fate.handled == 1, "a letter is handled once");
    ledger.run->world.note("handles", index, letter.id);
    if (last.size() <= fate.sender) {
      last.resize(fate.sender + 1, -1);
    }
    ledger.run->require(std::int64_t{letter.id} > last[fate.sender],
                        "letters of sender {} come in their order", fate.sender);
    last[fate.sender] = letter.id;
    if (random.chance(0.3)) {
      co_await yield();
    }
    if (random.chance(0.2)) {
      co_await sleep_for(microseconds(random.between(1, 50)));
    }
  }

  Ledger& ledger;
  std::uint32_t index;
  std::uint32_t credits;
  Random random;
  std::vector<std::int64_t> last;
  bool stopped = false;
};

using ReceiverAddress = Receiver::AddressType;

struct Sender {
  Sender(Ledger& to_in, std::uint32_t number_in, Random seeded,
         std::vector<ReceiverAddress> receivers)
      : ledger(&to_in), number(number_in), random(seeded), to(std::move(receivers)) {}
  Ledger* ledger;
  std::uint32_t number;
  Random random;
  std::vector<ReceiverAddress> to;
  StopSource stop;

  static Task<> send_all(Sender* self, int count) {
    for (int i = 0; i < count; ++i) {
      co_await self->send_one();
      if (self->random.chance(0.2)) {
        co_await sleep_for(microseconds(self->random.between(0, 40)));
      }
    }
  }

  Task<> send_one() {
    const auto receiver = static_cast<std::uint32_t>(random.below(to.size()));
    const auto id = static_cast<std::uint32_t>(ledger->fates.size());
    ledger->fates.push_back({number, receiver});
    if (random.chance(0.3)) {
      const SendResult result = to[receiver].try_send(Letter(*ledger, id));
      (result == SendResult::kSent ? ledger->fates[id].accepted : ledger->fates[id].refused) = true;
      co_return;
    }
    try {
      co_await to[receiver].send(Letter(*ledger, id),
                                 random.chance(0.5) ? stop.token() : StopToken());
      ledger->fates[id].accepted = true;
    } catch (const ActorClosed&) {
      ledger->fates[id].refused = true;
    } catch (const Stopped&) {
      ledger->fates[id].refused = true;
    }
  }
};

}  // namespace

std::uint64_t rehearse_messages(std::uint64_t seed) {
  const auto ranks = static_cast<std::uint32_t>(1 + Random(seed).fork("ranks").below(3));
  Run run("messages", seed, ranks);
  Ledger ledger{&run, {}};
  std::vector<std::unique_ptr<Scope>> scopes;
  std::vector<std::unique_ptr<Receiver>> receivers;
  std::vector<ReceiverAddress> addresses;
  std::vector<std::uint32_t> ranks_of_receivers;
  const std::uint64_t receiver_count = 1 + run.random.below(3);
  for (std::uint32_t i = 0; i < receiver_count; ++i) {
    ranks_of_receivers.push_back(static_cast<std::uint32_t>(run.random.below(ranks)));
    EventLoop& loop = run.world.loop(ranks_of_receivers.back());
    scopes.push_back(std::make_unique<Scope>(loop, Name("receivers")));
    run.watched.push_back(scopes.back().get());
    receivers.push_back(std::make_unique<Receiver>(
        ledger, i, static_cast<std::uint32_t>(1 + run.random.below(6)), run.random.fork(100 + i)));
    addresses.push_back(receivers.back()->address());
    receivers.back()->start(*scopes.back());
  }
  std::vector<std::unique_ptr<Sender>> senders;
  const std::uint64_t sender_count = 1 + run.random.below(5);
  for (std::uint32_t i = 0; i < sender_count; ++i) {
    const auto rank = static_cast<std::uint32_t>(run.random.below(ranks));
    senders.push_back(std::make_unique<Sender>(ledger, i, run.random.fork(200 + i), addresses));
    scopes.push_back(std::make_unique<Scope>(run.world.loop(rank), Name("senders")));
    run.watched.push_back(scopes.back().get());
    scopes.back()->spawn("sender", &Sender::send_all, senders.back().get(),
                         static_cast<int>(5 + run.random.below(40)));
    Sender* sender = senders.back().get();
    run.world.after(microseconds(run.random.between(10, 3000)), rank,
                    [sender] { sender->stop.request_stop(); });
  }
  // One of the receivers is closed early, or stopped.
  const std::uint64_t early = run.random.below(receiver_count);
  const Duration early_at = microseconds(run.random.between(10, 3000));
  run.world.after(early_at, ranks_of_receivers[early], [&, early] {
    if (run.random.chance(0.5)) {
      receivers[early]->close();
    } else {
      receivers[early]->stopped = true;
      scopes[early]->request_stop();
    }
  });
  run.each_step = [&] {
    for (std::size_t i = 0; i < receivers.size(); ++i) {
      run.require(addresses[i].depth() <= receivers[i]->credits, "mailbox {} is over its bound", i);
    }
  };
  run.until("the senders end", [&] {
    for (std::size_t i = receivers.size(); i < scopes.size(); ++i) {
      if (scopes[i]->running() > 0) {
        return false;
      }
    }
    return true;
  });
  for (const auto& receiver : receivers) {
    receiver->close();
  }
  run.until("the receivers end", [&] {
    for (const auto& scope : scopes) {
      if (scope->running() > 0) {
        return false;
      }
    }
    return true;
  });
  run.until("late messages arrive", [&] {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      if (run.world.loop(rank).has_ready_ops()) {
        return false;
      }
    }
    return true;
  });
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    run.require(addresses[i].depth() == 0, "receiver {} ends with {} credits out", i,
                addresses[i].depth());
  }
  for (std::size_t id = 0; id < ledger.fates.size(); ++id) {
    const Fate& fate = ledger.fates[id];
    run.require(fate.gone == 1, "letter {} ends once, not {} times", id, fate.gone);
    run.require(fate.accepted != fate.refused, "letter {} is accepted or refused", id);
    run.require(fate.handled == 0 || fate.accepted, "letter {} was refused and handled", id);
    run.require(fate.handled == 1 || !fate.accepted || receivers[fate.receiver]->stopped,
                "letter {} was accepted and never handled", id);
  }
  run.require_quiet();
  return run.world.log().hash();
}

}  // namespace tandem::sim_test
