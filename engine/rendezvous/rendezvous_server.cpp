#include "engine/rendezvous/rendezvous_server.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/rendezvous/blocked_signals.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

using std::chrono::milliseconds;

struct RendezvousServer::Connection {
  enum class State { kOpening, kClosing, kProven };

  OwnedDescriptor socket;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  State state = State::kOpening;
  rendezvous::Nonce of_client{};
  rendezvous::Nonce of_server{};
  std::array<std::byte, sizeof(rendezvous::Opening)> handshake{};
  std::size_t got = 0;  // of the handshake's message under way
  std::string in;       // the request under way
  std::string out;      // of the reply, what the socket did not take yet

  [[nodiscard]] bool is_proven() const { return state == State::kProven; }
  /// False: it ended.
  [[nodiscard]] bool flush();
  [[nodiscard]] bool send(const void* bytes, std::size_t count) {
    out.append(static_cast<const char*>(bytes), count);
    return flush();
  }
  /// Bytes that came, 0: none yet, -1: it ended.
  [[nodiscard]] ssize_t receive(void* into, std::size_t most) const;
};
static_assert(sizeof(rendezvous::Closing) <= sizeof(rendezvous::Opening));

namespace {
const std::string kNothing;
}  // namespace

bool RendezvousServer::Connection::flush() {
  while (!out.empty()) {
    const ssize_t sent = ::send(socket.get(), out.data(), out.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      out.erase(0, static_cast<std::size_t>(sent));
    } else if (errno != EINTR) {
      return errno == EAGAIN || errno == EWOULDBLOCK;
    }
  }
  return true;
}

ssize_t RendezvousServer::Connection::receive(void* into, std::size_t most) const {
  for (;;) {
    const ssize_t got = ::recv(socket.get(), into, most, MSG_DONTWAIT);
    if (got > 0) {
      return got;
    }
    if (got == 0 || errno != EINTR) {
      return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
    }
  }
}

RendezvousServer::RendezvousServer(OwnedDescriptor listener, const Secret& secret, std::string run)
    : listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      secret_(secret),
      run_(std::move(run)) {
  if (wake_.get() < 0) {
    throw failure(ExitCode::kFailure, "rendezvous", "no descriptor for the store: {}",
                  std::strerror(errno));
  }
  (void)::fcntl(listener_.get(), F_SETFL, O_NONBLOCK);
  const BlockedSignals blocked;
  thread_ = std::jthread([this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  ends_ = true;
  (void)::eventfd_write(wake_.get(), 1);
  thread_.join();
}

void RendezvousServer::stop_listening() {
  (void)::shutdown(listener_.get(), SHUT_RDWR);  // the descriptor is the thread's to close
  listens_ = false;
  (void)::eventfd_write(wake_.get(), 1);
}

void RendezvousServer::serve() {
  while (!ends_) {
    turn(/*most_ms=*/-1);
  }
  // Rank 0 gives up before all have met, because of what another one has set: that one still gets
  // to ask what rank 0 has set, and ends with the same words.
  const bool met = !listens_.exchange(false);
  for (const auto end =
           std::chrono::steady_clock::now() + (met ? milliseconds(0) : rendezvous::kLastAnswers);
       !connections_.empty() && std::chrono::steady_clock::now() < end;) {
    turn(/*most_ms=*/20);
  }
}

void RendezvousServer::turn(int most_ms) {
  wait(most_ms);
  if (!listens_) {
    listener_ = OwnedDescriptor();
    drop_unproven(/*only_late=*/false);
  } else {
    accept_some();
  }
  for (auto at = connections_.begin(); at != connections_.end();) {
    at = advance(*at) ? std::next(at) : connections_.erase(at);
  }
  drop_unproven(/*only_late=*/true);
}

void RendezvousServer::wait(int most_ms) {
  std::vector<pollfd> looked_at = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                   {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
  bool any_unproven = false;
  for (const Connection& connection : connections_) {
    any_unproven = any_unproven || !connection.is_proven();
    const short events = connection.out.empty() ? POLLIN : POLLOUT;
    looked_at.push_back({.fd = connection.socket.get(), .events = events, .revents = 0});
  }
  (void)::poll(looked_at.data(), looked_at.size(), any_unproven ? 100 : most_ms);
  eventfd_t ignored = 0;
  (void)::eventfd_read(wake_.get(), &ignored);
}

// Accepts a few at a time, so that connections that send their proofs are served in between.
void RendezvousServer::accept_some() {
  for (int count = 0; count < 8; ++count) {
    OwnedDescriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        make_room();
        std::this_thread::sleep_for(milliseconds(1));
      }
      return;
    }
    const auto unproven = std::ranges::count_if(
        connections_, [](const Connection& some) { return !some.is_proven(); });
    if (static_cast<std::size_t>(unproven) >= rendezvous::kMostUnproven) {
      make_room();
    }
    connections_.emplace_back().socket = std::move(socket);
  }
}

/// Ends the oldest connection that has proven nothing.
void RendezvousServer::make_room() {
  const auto oldest =
      std::ranges::find_if(connections_, [](const Connection& some) { return !some.is_proven(); });
  if (oldest != connections_.end()) {
    connections_.erase(oldest);
  }
}

void RendezvousServer::drop_unproven(bool only_late) {
  const auto late = std::chrono::steady_clock::now() - rendezvous::kTimeToProve;
  std::erase_if(connections_, [&](const Connection& some) {
    return !some.is_proven() && (!only_late || some.since < late);
  });
}

// False: the connection is to end.
bool RendezvousServer::advance(Connection& connection) {
  if (!connection.flush()) {
    return false;
  }
  if (!connection.out.empty()) {
    return true;
  }
  return connection.is_proven() ? take_request(connection) : take_handshake(connection);
}

bool RendezvousServer::take_handshake(Connection& c) {
  const bool opens = c.state == Connection::State::kOpening;
  const std::size_t wanted = opens ? sizeof(rendezvous::Opening) : sizeof(rendezvous::Closing);
  const ssize_t got = c.receive(c.handshake.data() + c.got, wanted - c.got);
  if (got <= 0) {
    return got == 0;
  }
  c.got += static_cast<std::size_t>(got);
  if (c.got < wanted) {
    return true;
  }
  c.got = 0;
  if (opens) {
    rendezvous::Opening opening;
    std::memcpy(&opening, c.handshake.data(), sizeof(opening));
    if (opening.magic != rendezvous::kMagic) {
      return false;
    }
    if (opening.version != rendezvous::kVersion) {  // it is told so, and learns no proof
      const rendezvous::Answer other{};
      (void)c.send(&other, sizeof(other));
      return false;
    }
    c.of_client = opening.nonce;
    c.of_server = rendezvous::random_nonce();
    c.state = Connection::State::kClosing;
    const rendezvous::Answer answer{
        .nonce = c.of_server,
        .proof = prove(rendezvous::Role::kServer, secret_, run_, c.of_client, c.of_server)};
    return c.send(&answer, sizeof(answer));
  }
  rendezvous::Closing closing;
  std::memcpy(&closing, c.handshake.data(), sizeof(closing));
  if (!is_proof(closing.proof, rendezvous::Role::kClient, secret_, run_, c.of_client,
                c.of_server)) {
    return false;
  }
  c.state = Connection::State::kProven;
  const char welcome = 1;
  return c.send(&welcome, 1);
}

// Reads no more than the present request has; memory grows with received bytes, not with announced
// ones.
bool RendezvousServer::take_request(Connection& c) {
  std::array<char, 16384> some;
  for (;;) {
    std::size_t wanted = sizeof(rendezvous::Request);
    rendezvous::Request request;
    if (c.in.size() >= sizeof(rendezvous::Request)) {
      std::memcpy(&request, c.in.data(), sizeof(request));
      if (request.key_bytes == 0 || request.key_bytes > rendezvous::kMostKeyBytes ||
          request.value_bytes > rendezvous::kMostValueBytes) {
        return false;
      }
      wanted += request.key_bytes + request.value_bytes;
      if (c.in.size() == wanted) {
        const std::string whole = std::exchange(c.in, {});
        return answer(c, request.question, whole.substr(sizeof(request), request.key_bytes),
                      whole.substr(sizeof(request) + request.key_bytes));
      }
    }
    const ssize_t got = c.receive(some.data(), std::min(some.size(), wanted - c.in.size()));
    if (got <= 0) {
      return got == 0;
    }
    c.in.append(some.data(), static_cast<std::size_t>(got));
  }
}

bool RendezvousServer::answer(Connection& c, rendezvous::Question question, const std::string& key,
                              std::string value) {
  auto found = values_.find(key);
  switch (question) {
    case rendezvous::Question::kSet:
      return store(key, std::move(value)) && reply(c, &kNothing);
    case rendezvous::Question::kCount: {
      const std::string before = found == values_.end() ? "0" : found->second;
      const std::string after = std::to_string(std::strtoll(before.c_str(), nullptr, 10) + 1);
      return store(key, after) && reply(c, &after);
    }
    case rendezvous::Question::kGet:
      return reply(c, found == values_.end() ? nullptr : &found->second);
  }
  return false;
}

bool RendezvousServer::reply(Connection& c, const std::string* value) {
  const rendezvous::Reply head{.is_there = value != nullptr ? 1U : 0U,
                               .value_bytes = value != nullptr ? value->size() : 0};
  c.out.assign(reinterpret_cast<const char*>(&head), sizeof(head));
  return value == nullptr ? c.flush() : c.send(value->data(), value->size());
}

// False: the store is full.
bool RendezvousServer::store(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const std::size_t before =
      found == values_.end() ? 0 : found->first.size() + found->second.size();
  const std::size_t after = stored_bytes_ - before + key.size() + value.size();
  if (after > rendezvous::kMostStoredBytes ||
      (found == values_.end() && values_.size() >= rendezvous::kMostKeys)) {
    return false;
  }
  stored_bytes_ = after;
  values_.insert_or_assign(key, std::move(value));
  return true;
}

}  // namespace tandem
