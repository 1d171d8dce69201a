#include "engine/distributed/rendezvous_store.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <poll.h>
#include <sys/socket.h>

#include "actors/collectives/secret.hpp"
#include "engine/rendezvous/listening.hpp"
#include "engine/rendezvous/patience.hpp"
#include "engine/rendezvous/rendezvous_server.hpp"
#include "runtime/clock.hpp"
#include "runtime/flight.hpp"
#include "runtime/system/network_interface.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using rendezvous::Question;
using rendezvous::Role;
using std::chrono::milliseconds;

constexpr const char* kLoopback = "127.0.0.1";

/// The ranks of one host need no network, unless the user names an address. A launcher that listens
/// at MASTER_PORT itself names its own.
std::string address_of(const Environment& e) {
  const bool own_choice = e.local_world == e.world && (!e.address_given || e.agent_store);
  return own_choice || e.master_address == "localhost" ? kLoopback : e.master_address;
}

/// Each recv() has a limit of its own, and a drip of bytes meets all of them: this is one of all
/// together. False: it is over.
bool wait_until(int socket, short events, TimePoint until) {
  if (until == TimePoint::max()) {
    return true;
  }
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::real().now()).count();
    pollfd ready{.fd = socket, .events = events, .revents = 0};
    const int found =
        ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (found > 0) {
      return true;
    }
    if (left <= 0 || (found < 0 && errno != EINTR)) {
      return false;
    }
  }
}

bool send_all(int socket, const void* bytes, std::size_t count,
              TimePoint until = TimePoint::max()) {
  const auto* at = static_cast<const char*>(bytes);
  while (count > 0) {
    if (!wait_until(socket, POLLOUT, until)) {
      return false;
    }
    const ssize_t sent = ::send(socket, at, count, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    at += sent;
    count -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* into, std::size_t count, TimePoint until = TimePoint::max()) {
  auto* at = static_cast<char*>(into);
  while (count > 0) {
    if (!wait_until(socket, POLLIN, until)) {
      return false;
    }
    const ssize_t got = ::recv(socket, at, count, 0);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    at += got;
    count -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

RendezvousStore::RendezvousStore(const Environment& environment, milliseconds timeout)
    : environment_(environment),
      timeout_(timeout),
      address_(address_of(environment)),
      interface_(environment.local_world < environment.world ? environment.interface : ""),
      port_(environment.master_port),
      secret_(given_secret(environment)),
      by_note_(secret_.empty() || environment.agent_store),
      note_(environment) {
  if (by_note_ && environment.local_world < environment.world) {
    throw user_error("rendezvous", "{} of {} ranks are on this host, and {}",
                     environment.local_world, environment.world,
                     secret_.empty() ? "those of the others need the run's secret; set "
                                       "TANDEM_RUN_SECRET to the same text on all ranks"
                                     : "the launcher listens at MASTER_PORT itself; start them "
                                       "with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1");
  }
  check_address();  // on every rank, so that all say what is wrong with it
  if (environment.rank == 0) {
    host();
  }
  connect();
}

RendezvousStore::~RendezvousStore() = default;

// On many hosts /etc/hosts maps the host's own name to an address of the loopback.
void RendezvousStore::check_address() const {
  const bool are_several = environment_.local_world < environment_.world;
  if (are_several && !environment_.address_given && address_ == kLoopback) {
    throw user_error("rendezvous",
                     "{} of {} ranks are on this host, and {} say nothing of where rank 0 is; set "
                     "MASTER_ADDR to its host's address, the same on all ranks",
                     environment_.local_world, environment_.world, environment_.source);
  }
  const std::string text = resolve(address_, port_).text();
  const bool is_name = text != address_ && address_ != kLoopback;
  const bool is_named_by_interface = environment_.rank == 0 && !interface_.empty();
  if (are_several && is_name && is_loopback(text) && !is_named_by_interface) {
    throw user_error("rendezvous",
                     "MASTER_ADDR {} is {} on this host (see /etc/hosts), where other hosts find "
                     "nothing; set it to the host's address in their network, or TANDEM_INTERFACE "
                     "to that network's interface",
                     address_, text);
  }
}

void RendezvousStore::host() {
  if (!interface_.empty()) {
    const bool is_v6 = resolve(address_, port_).get()->sa_family == AF_INET6;
    address_ = address_of_interface("rendezvous", interface_, is_v6 ? Ip::kV6 : Ip::kV4);
  }
  OwnedDescriptor listener = listen_on(address_, environment_.agent_store ? 0 : port_);
  port_ = port_of(listener);
  if (secret_.empty()) {
    secret_ = Secret::random_text();
  }
  server_ = std::make_unique<RendezvousServer>(std::move(listener), Secret(secret_), run_name());
  if (by_note_) {
    note_.leave({port_, secret_});
  }
}

// A rank may connect before rank 0 listens, or to a port of an earlier run, or while other
// processes occupy the port: it retries until its time is over.
void RendezvousStore::connect() {
  Patience patience(timeout_);
  for (Attempt last = Attempt::kNotThere;;) {
    Attempt attempt = Attempt::kNotThere;
    if (server_ != nullptr || !by_note_) {
      attempt = try_to_connect(port_);
    } else if (const auto note = note_.read()) {
      secret_ = note->secret;
      attempt = try_to_connect(note->port);
    }
    if (attempt == Attempt::kConnected) {
      return;
    }
    last = attempt == Attempt::kNotThere ? last : attempt;
    if (patience.grows_long()) {
      say_waiting_for(0);
    }
    if (!patience.pause(milliseconds(10))) {
      throw_not_met(last);
    }
  }
}

void RendezvousStore::say_waiting_for(int rank) const {
  fmt::print(stderr, "[rendezvous] rank {} of {} waits for rank {} at {}:{} (by {}; {})\n",
             environment_.rank, environment_.world, rank, address_, port_, environment_.source,
             environment_.source.starts_with("Slurm") ? "was srun left out?" : "is it started?");
  (void)std::fflush(stderr);
}

void RendezvousStore::throw_not_met(Attempt last) const {
  flight::blame(0);
  if (last == Attempt::kOtherVersion) {
    throw failure(
        ExitCode::kPeer, "rendezvous",
        "rank 0, at port {} of {}, is of a version of Tandem that this one (rank {}) does "
        "not understand; install the same on all hosts",
        port_, address_, environment_.rank);
  }
  if (last == Attempt::kStranger) {
    throw failure(ExitCode::kPeer, "rendezvous",
                  "what listens at port {} of {} does not know this run's secret; give all ranks "
                  "one TANDEM_RUN_SECRET, or another MASTER_PORT",
                  port_, address_);
  }
  throw failure(ExitCode::kPeer, "rendezvous",
                "rank 0 did not open port {} of {} within {} s; see its output", port_, address_,
                timeout_.count() / 1e3);
}

RendezvousStore::Attempt RendezvousStore::try_to_connect(int port) {
  const milliseconds most =
      std::min<milliseconds>(timeout_, std::chrono::seconds(rendezvous::kTimeToProve));
  const TimePoint until = Clock::real().now() + most;
  // Rank 0 is at its own host's address already.
  OwnedDescriptor socket =
      connect_to(resolve(address_, port), most, server_ != nullptr ? "" : interface_);
  if (socket.get() < 0) {
    return Attempt::kNotThere;
  }
  const Attempt attempt = shake_hands(socket.get(), until);
  if (attempt == Attempt::kConnected) {
    set_time_limit(socket, timeout_);
    socket_ = std::move(socket);
  }
  return attempt;
}

// Only a random number is sent to a peer without a proof. A peer of another version says so before
// it proves anything, and any process could say that: so it does not end this rank earlier than a
// failed proof does.
RendezvousStore::Attempt RendezvousStore::shake_hands(int socket, TimePoint until) const {
  const Secret secret(secret_);
  const std::string run = run_name();
  const rendezvous::Opening opening{.nonce = rendezvous::random_nonce()};
  rendezvous::Answer answer{.magic = 0};
  if (!send_all(socket, &opening, sizeof(opening), until) ||
      !receive_all(socket, &answer, sizeof(answer), until) || answer.magic != rendezvous::kMagic) {
    return Attempt::kStranger;
  }
  if (answer.version != rendezvous::kVersion) {
    return Attempt::kOtherVersion;
  }
  if (!is_proof(answer.proof, Role::kServer, secret, run, opening.nonce, answer.nonce)) {
    return Attempt::kStranger;
  }
  const rendezvous::Closing closing{
      .proof = prove(Role::kClient, secret, run, opening.nonce, answer.nonce)};
  char welcome = 0;
  return send_all(socket, &closing, sizeof(closing), until) &&
                 receive_all(socket, &welcome, 1, until)
             ? Attempt::kConnected
             : Attempt::kStranger;
}

std::string RendezvousStore::run_name() const {
  return fmt::format("{}/{}", environment_.run_id, environment_.restart);
}

std::string RendezvousStore::derive_secret(std::string_view purpose, std::string_view what) const {
  return Secret(secret_).derive(purpose, what);
}

void RendezvousStore::close_to_strangers() {
  meeting_ = false;
  if (server_ != nullptr) {
    server_->stop_listening();
    note_.remove();
  }
}

RendezvousStore::Answered RendezvousStore::ask(Question question, std::string_view key,
                                               std::string_view value) {
  if (key.size() > rendezvous::kMostKeyBytes || value.size() > rendezvous::kMostValueBytes) {
    throw failure(ExitCode::kFailure, "rendezvous",
                  "{} bytes under {}, at most {}; the ranks cannot compare that much", value.size(),
                  key.substr(0, 100), rendezvous::kMostValueBytes);
  }
  const rendezvous::Request request{.question = question,
                                    .key_bytes = static_cast<std::uint32_t>(key.size()),
                                    .value_bytes = value.size()};
  std::string message(reinterpret_cast<const char*>(&request), sizeof(request));
  message.append(key).append(value);
  rendezvous::Reply reply;
  Answered answered;
  bool is_through = send_all(socket_.get(), message.data(), message.size()) &&
                    receive_all(socket_.get(), &reply, sizeof(reply)) &&
                    reply.value_bytes <= rendezvous::kMostValueBytes;
  if (is_through) {
    answered.is_there = reply.is_there != 0;
    answered.value.resize(reply.value_bytes);
    is_through = receive_all(socket_.get(), answered.value.data(), answered.value.size());
  }
  if (!is_through) {
    flight::blame(0);
    throw failure(ExitCode::kPeer, "rendezvous",
                  "rank 0, which hosts the rendezvous, is gone; see its output");
  }
  return answered;
}

void RendezvousStore::set(std::string_view key, std::string_view value) {
  (void)ask(Question::kSet, key, value);
}

std::int64_t RendezvousStore::count(std::string_view key) {
  return std::strtoll(ask(Question::kCount, key).value.c_str(), nullptr, 10);
}

bool RendezvousStore::wait(std::string_view key, Patience& patience, std::string& value,
                           std::optional<int> rank) {
  for (milliseconds pause{1};; pause = std::min(2 * pause, milliseconds(20))) {
    Answered answered = ask(Question::kGet, key);
    if (answered.is_there) {
      value = std::move(answered.value);
      return true;
    }
    if (rank && meeting_ && patience.grows_long()) {
      say_waiting_for(*rank);
    }
    if (!patience.pause(pause)) {
      return false;
    }
  }
}

std::string RendezvousStore::get(std::string_view key, int rank) {
  std::string value;
  Patience patience(timeout_);
  if (!wait(key, patience, value, rank)) {
    const int behind = rank_behind(rank);
    flight::blame(static_cast<std::uint64_t>(behind));
    throw failure(ExitCode::kPeer, "rendezvous",
                  "rank {} did not come within {} s{}; see its output", rank,
                  timeout_.count() / 1e3,
                  behind == rank ? "" : fmt::format(", and rank {} is behind it", behind));
  }
  return value;
}

std::vector<std::string> RendezvousStore::all(std::string_view key, std::string_view mine) {
  begin_step();
  set(fmt::format("{}/{}", key, environment_.rank), mine);
  Patience patience(timeout_);
  std::vector<std::string> values(static_cast<std::size_t>(environment_.world));
  for (int rank = 0; rank < environment_.world; ++rank) {
    if (!wait(fmt::format("{}/{}", key, rank), patience, values[static_cast<std::size_t>(rank)],
              rank)) {
      throw_missing(key, environment_.world);
    }
  }
  return values;
}

void RendezvousStore::begin_step() {
  set(fmt::format("at/{}", environment_.rank), std::to_string(++steps_));
}

int RendezvousStore::rank_behind(int otherwise) {
  int found = otherwise;
  std::int64_t fewest = steps_;
  for (int rank = 0; rank < environment_.world; ++rank) {
    const std::int64_t steps =
        std::strtoll(ask(Question::kGet, fmt::format("at/{}", rank)).value.c_str(), nullptr, 10);
    if (steps < fewest) {
      fewest = steps;
      found = rank;
    }
  }
  return found;
}

void RendezvousStore::throw_missing(std::string_view key, int ranks) {
  std::string came;
  int count = 0;
  int missing = environment_.rank;
  for (int rank = 0; rank < ranks; ++rank) {
    if (ask(Question::kGet, fmt::format("{}/{}", key, rank)).is_there) {
      came += fmt::format("{}{}", count == 0 ? "" : ", ", rank);
      ++count;
    } else if (missing == environment_.rank) {
      missing = rank;
    }
  }
  const int behind = rank_behind(missing);
  std::string at_fault;  // none, where the last one came meanwhile
  if (behind != environment_.rank) {
    flight::blame(static_cast<std::uint64_t>(behind));
    at_fault = fmt::format("; rank {} holds them up", behind);
  }
  throw failure(ExitCode::kPeer, "rendezvous",
                "{} of {} ranks came within {} s ({}){}: see the output of the others", count,
                ranks, timeout_.count() / 1e3, came, at_fault);
}

void RendezvousStore::leave_together(std::string_view key) {
  begin_step();
  const std::string through = fmt::format("{}/all", key);
  if (count(fmt::format("{}/left", key)) == environment_.world) {
    set(through, "1");
  }
  if (environment_.rank == 0) {
    std::string ignored;
    Patience patience(timeout_);
    (void)wait(through, patience, ignored);
  }
}

}  // namespace tandem
