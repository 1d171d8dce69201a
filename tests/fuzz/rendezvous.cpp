// Bytes of a connection to the store where ranks meet. The first byte says whether the other end
// has proven that it knows the run's secret; the rest is what that end then sends.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/rendezvous/rendezvous_server.hpp"
#include "engine/rendezvous/rendezvous_wire.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace tandem::fuzz {
namespace {

using rendezvous::Answer;
using rendezvous::Closing;
using rendezvous::Opening;
using rendezvous::Question;
using rendezvous::Reply;
using rendezvous::Request;
using rendezvous::Role;

constexpr int kRunsOfAStore = 500;  // stored keys must not fill this process
const std::string kRun = "fuzz/0";

const Secret& secret() {
  static const Secret made{std::string(64, 's')};
  return made;
}

/// A store at a name of its own.
class Store {
 public:
  Store() {
    static int count = 0;
    const std::string name = std::to_string(getpid()) + "-fuzz-" + std::to_string(++count);
    address_.sun_family = AF_UNIX;
    name.copy(address_.sun_path + 1, name.size());  // a leading zero makes it abstract
    length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    OwnedDescriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    expect(::bind(listener.get(), address(), length_) == 0 && ::listen(listener.get(), 64) == 0,
           "a fresh name can be listened at");
    server_ = std::make_unique<RendezvousServer>(std::move(listener), secret(), kRun);
  }
  [[nodiscard]] OwnedDescriptor dial() const {
    OwnedDescriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    expect(::connect(made.get(), address(), length_) == 0, "the store takes connections");
    return made;
  }

 private:
  [[nodiscard]] const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  sockaddr_un address_{};
  socklen_t length_ = 0;
  std::unique_ptr<RendezvousServer> server_;
};

void send(const OwnedDescriptor& socket, const void* bytes, std::size_t count) {
  const char* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t sent = ::send(socket.get(), from, count, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) {
      return;  // the store has ended the connection
    }
    from += std::max<ssize_t>(sent, 0);
    count -= static_cast<std::size_t>(std::max<ssize_t>(sent, 0));
  }
}

/// Up to `most` bytes; fewer where the connection ends before.
std::string receive(const OwnedDescriptor& socket, std::size_t most) {
  std::string all;
  char some[16384];
  while (all.size() < most) {
    const ssize_t got = ::recv(socket.get(), some, std::min(sizeof(some), most - all.size()), 0);
    if (got < 0 && errno == EINTR) {  // libFuzzer's clock ticks
      continue;
    }
    if (got <= 0) {
      break;
    }
    all.append(some, static_cast<std::size_t>(got));
  }
  return all;
}

OwnedDescriptor proven(const Store& store) {
  OwnedDescriptor socket = store.dial();
  const Opening opening{.nonce = rendezvous::random_nonce()};
  send(socket, &opening, sizeof(opening));
  const std::string bytes = receive(socket, sizeof(Answer));
  expect(bytes.size() == sizeof(Answer), "the store answers an opening");
  Answer answer;
  std::memcpy(&answer, bytes.data(), sizeof(answer));
  const Closing closing{prove(Role::kClient, secret(), kRun, opening.nonce, answer.nonce)};
  send(socket, &closing, sizeof(closing));
  expect(receive(socket, 1).size() == 1, "who knows the secret is welcome");
  return socket;
}

/// Replies are whole, with the bytes that they announce; the last one may be cut by the end.
void check_replies(std::string_view replies) {
  while (replies.size() >= sizeof(Reply)) {
    Reply reply;
    std::memcpy(&reply, replies.data(), sizeof(reply));
    expect(reply.is_there <= 1 && reply.value_bytes <= rendezvous::kMostValueBytes,
           "a reply is one of the store's");
    replies.remove_prefix(sizeof(reply));
    replies.remove_prefix(std::min<std::size_t>(replies.size(), reply.value_bytes));
  }
}

/// A rank of the run, which comes after all that.
void set_and_get(const Store& store) {
  const OwnedDescriptor socket = proven(store);
  const Request set{.question = Question::kSet, .key_bytes = 4, .value_bytes = 5};
  send(socket, &set, sizeof(set));
  send(socket, "rankvalue", 9);
  const Request get{.question = Question::kGet, .key_bytes = 4, .value_bytes = 0};
  send(socket, &get, sizeof(get));
  send(socket, "rank", 4);
  const std::string replies = receive(socket, 2 * sizeof(Reply) + 5);
  expect(replies.ends_with("value"), "a rank gets what a rank has set");
}

}  // namespace

void read(std::string_view input) {
  static std::unique_ptr<Store> store;
  static int runs = 0;
  if (runs++ % kRunsOfAStore == 0) {
    store = std::make_unique<Store>();
  }
  const bool is_proven = !input.empty() && input.front() % 2 == 1;
  input.remove_prefix(input.empty() ? 0 : 1);
  {
    const OwnedDescriptor socket = is_proven ? proven(*store) : store->dial();
    send(socket, input.data(), input.size());
    (void)::shutdown(socket.get(), SHUT_WR);
    const std::string replies = receive(socket, std::size_t{1} << 30);
    if (is_proven) {
      check_replies(replies);
    } else {
      expect(replies.size() <= sizeof(Answer), "a stranger gets one answer");
    }
  }
  if (runs % 16 == 0) {
    set_and_get(*store);
  }
}

}  // namespace tandem::fuzz
