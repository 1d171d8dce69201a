// runtime/supervision/status_server.hpp — answers `GET /page` over a Unix socket or a loopback port
// while the loop runs: for people and scrapers that watch a program.
//
//   StatusServer status(loop, "run/status.sock", {{"/tasks", {"application/json", [&] { ... }}}});
//   curl --unix-socket run/status.sock http://run/tasks
//
// It speaks HTTP/1.0: one request of at most 4 KiB, one answer, the connection's end. A client that
// is slow, silent or speaks something else is disconnected after five seconds. If there are more
// than sixteen clients, the oldest is disconnected at once, so that clients that connect and stay
// neither keep others out nor take memory. A request changes nothing.
// A Unix socket is open to its user alone (and root), by its mode and by the peer's uid; a loopback
// port is open to every user of the host.
// Thread rule: the loop's thread (or the owner's while the loop does not run); the pages are made
// there, too.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace tandem {

class EventLoop;

struct StatusPage {
  std::string content_type;
  std::function<std::string()> make;
};

class StatusServer {
 public:
  /// `address`: a path, or 127.0.0.1:PORT (port 0: any that is free). A socket file without a
  /// listener is replaced. Throws user_error if it cannot listen there.
  StatusServer(EventLoop& loop, const std::string& address,
               std::map<std::string, StatusPage> pages);
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  /// The path, or 127.0.0.1 and the port.
  [[nodiscard]] const std::string& address() const noexcept;

 private:
  struct Server;
  struct Client;
  std::shared_ptr<Server> server_;
};

}  // namespace tandem
