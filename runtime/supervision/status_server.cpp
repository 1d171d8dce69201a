#include "runtime/supervision/status_server.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <asio/basic_socket_acceptor.hpp>
#include <asio/buffer.hpp>
#include <asio/generic/stream_protocol.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/event_loop.hpp"
#include "runtime/supervision/socket_path.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"

namespace tandem {
namespace {

using Protocol = asio::generic::stream_protocol;
constexpr std::size_t kMostRequestBytes = 4096;
constexpr std::size_t kMostClients = 16;
constexpr int kBacklog = 128;  // between two turns of the loop
constexpr std::chrono::seconds kPatience(5);
constexpr std::chrono::milliseconds kRest(200);  // where no connection can be taken

Error refused(const std::string& address, std::string_view why) {
  return user_error("status", "cannot serve --status_socket {}: {}", address, why);
}

/// The port of "127.0.0.1:PORT"; nullopt for a path.
std::optional<std::uint16_t> port_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (address.find('/') != std::string::npos || colon == std::string::npos) {
    return std::nullopt;
  }
  std::uint16_t port = 0;
  const char* const end = address.data() + address.size();
  const auto read = std::from_chars(address.data() + colon + 1, end, port);
  if (read.ec != std::errc() || read.ptr != end || address.substr(0, colon) != "127.0.0.1") {
    throw refused(address, "give a path, or 127.0.0.1:PORT (other hosts are not served)");
  }
  return port;
}

/// Removes a socket without a listener; anything else in its place stays.
void clear_place(asio::io_context& reactor, const std::string& path) {
  struct stat found{};
  if (::lstat(path.c_str(), &found) != 0) {
    return;
  }
  if (!S_ISSOCK(found.st_mode)) {
    throw refused(path, "something else is there");
  }
  asio::local::stream_protocol::socket probe(reactor);
  asio::error_code failed;
  probe.open(asio::local::stream_protocol(), failed);
  ::fcntl(probe.native_handle(), F_SETFD, FD_CLOEXEC);
  // A listener that takes none must not hang us. asio's connect() would wait all the same.
  probe.native_non_blocking(true, failed);
  const SocketPath place(path);
  const asio::local::stream_protocol::endpoint to(place.address);
  const bool connected = !failed && ::connect(probe.native_handle(), to.data(),
                                              static_cast<socklen_t>(to.size())) == 0;
  if (connected || failed || errno == EAGAIN) {
    throw refused(path, "another process serves it");
  }
  ::unlink(path.c_str());
}

bool may_ask(int socket) {
  const std::optional<SocketPeer> peer = peer_of(socket);
  return peer && (peer->user == ::geteuid() || peer->user == 0);
}

std::string answer(int code, std::string_view reason, std::string_view type,
                   std::string_view body) {
  return fmt::format(
      "HTTP/1.0 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
      code, reason, type, body.size(), body);
}

}  // namespace

// Held by its StatusServer and by what is under way on the reactor, which may end later.
struct StatusServer::Server : std::enable_shared_from_this<Server> {
  Server(EventLoop& loop, std::map<std::string, StatusPage> pages_in)
      : reactor(loop.reactor()),
        acceptor(loop.reactor()),
        rest(loop.reactor()),
        pages(std::move(pages_in)) {}

  void listen(const std::string& where) {
    const std::optional<std::uint16_t> port = port_of(where);
    try {
      if (port) {
        listen_on(asio::ip::tcp::endpoint(asio::ip::address_v4::loopback(), *port));
        const auto bound = acceptor.local_endpoint();
        asio::ip::tcp::endpoint tcp;
        std::memcpy(tcp.data(), bound.data(), bound.size());
        address = fmt::format("127.0.0.1:{}", tcp.port());
      } else {
        clear_place(reactor, where);
        listen_on(asio::local::stream_protocol::endpoint(SocketPath(where).address));
        address = where;
        is_local = true;
      }
    } catch (const std::system_error& error) {
      throw refused(where, error.code().message());
    }
  }
  template <class Endpoint>
  void listen_on(const Endpoint& endpoint) {
    acceptor.open(Protocol(endpoint.protocol()));
    ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
    // The socket's mode becomes the file's: it is closed to others from the first moment on.
    ::fchmod(acceptor.native_handle(), S_IRUSR | S_IWUSR);
    acceptor.bind(Protocol::endpoint(endpoint));
    acceptor.listen(kBacklog);
  }

  void accept();
  void accept_later();
  void take(Protocol::socket socket);
  [[nodiscard]] std::string answer_to(std::string_view request) const;

  asio::io_context& reactor;
  asio::basic_socket_acceptor<Protocol> acceptor;
  asio::steady_timer rest;
  std::map<std::string, StatusPage> pages;
  std::string address;
  bool is_local = false;
  std::deque<std::weak_ptr<Client>> clients;  // the oldest first
};

/// One connection, kept alive by what it waits for.
struct StatusServer::Client : std::enable_shared_from_this<Client> {
  Client(std::shared_ptr<Server> owner, Protocol::socket connected)
      : server(std::move(owner)), socket(std::move(connected)), timer(server->reactor) {}

  void begin() {
    timer.expires_after(kPatience);
    timer.async_wait([self = shared_from_this()](const asio::error_code& error) {
      if (!error) {
        self->end();
      }
    });
    read();
  }
  void end() {
    asio::error_code ignored;
    socket.close(ignored);
    timer.cancel();
  }
  void read() {
    socket.async_receive(asio::buffer(chunk), [self = shared_from_this()](
                                                  const asio::error_code& error, std::size_t got) {
      self->request.append(self->chunk.data(), got);
      const bool whole = self->request.find("\r\n\r\n") != std::string::npos ||
                         self->request.find("\n\n") != std::string::npos;
      if (error) {
        self->timer.cancel();
      } else if (whole || self->request.size() >= kMostRequestBytes) {
        self->write();
      } else {
        self->read();
      }
    });
  }
  void write() {
    text = server->answer_to(request);
    asio::async_write(socket, asio::buffer(text),
                      [self = shared_from_this()](const asio::error_code&, std::size_t) {
                        asio::error_code ignored;
                        self->socket.shutdown(Protocol::socket::shutdown_both, ignored);
                        self->timer.cancel();
                      });
  }

  std::shared_ptr<Server> server;
  Protocol::socket socket;
  asio::steady_timer timer;
  std::array<char, 1024> chunk{};
  std::string request;
  std::string text;
};

void StatusServer::Server::accept() {
  acceptor.async_accept(
      [self = shared_from_this()](const asio::error_code& error, Protocol::socket socket) {
        if (!self->acceptor.is_open()) {
          return;
        }
        if (error) {
          self->accept_later();  // there are no descriptors left, say
          return;
        }
        ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
        if (!self->is_local || may_ask(socket.native_handle())) {
          self->take(std::move(socket));
        }
        self->accept();
      });
}

void StatusServer::Server::accept_later() {
  rest.expires_after(kRest);
  rest.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && self->acceptor.is_open()) {
      self->accept();
    }
  });
}

/// Every caller is answered: those who came first and stay must not keep the user out.
void StatusServer::Server::take(Protocol::socket socket) {
  std::erase_if(clients, [](const std::weak_ptr<Client>& one) { return one.expired(); });
  if (clients.size() >= kMostClients) {
    if (const std::shared_ptr<Client> oldest = clients.front().lock()) {
      oldest->end();
    }
    clients.pop_front();
  }
  const auto client = std::make_shared<Client>(shared_from_this(), std::move(socket));
  clients.push_back(client);
  client->begin();
}

std::string StatusServer::Server::answer_to(std::string_view request) const {
  constexpr std::string_view kText = "text/plain";
  if (!request.starts_with("GET ")) {
    return answer(405, "Method Not Allowed", kText, "only GET\n");
  }
  request.remove_prefix(4);
  const std::string path(request.substr(0, request.find_first_of(" ?\r\n")));
  const auto page = pages.find(path);
  if (page == pages.end()) {
    std::string known;
    for (const auto& [name, ignored] : pages) {
      known += name + "\n";
    }
    return answer(path == "/" ? 200 : 404, path == "/" ? "OK" : "Not Found", kText, known);
  }
  return answer(200, "OK", page->second.content_type, page->second.make());
}

StatusServer::StatusServer(EventLoop& loop, const std::string& address,
                           std::map<std::string, StatusPage> pages)
    : server_(std::make_shared<Server>(loop, std::move(pages))) {
  server_->listen(address);
  server_->accept();
}

StatusServer::~StatusServer() {
  server_->pages.clear();  // what they refer to ends; an answer under way is made already
  asio::error_code ignored;
  server_->acceptor.close(ignored);
  server_->rest.cancel();
  if (server_->is_local) {
    ::unlink(server_->address.c_str());
  }
}

const std::string& StatusServer::address() const noexcept { return server_->address; }

}  // namespace tandem
