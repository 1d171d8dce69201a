#include "tools/cli/status_client.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <simdjson.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "runtime/supervision/socket_path.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {
namespace {

using simdjson::dom::element;

constexpr std::size_t kShownTasks = 8;
constexpr std::size_t kShownMailboxes = 64;
constexpr std::size_t kMostAnswer = std::size_t{4} << 20;
constexpr std::chrono::seconds kPatience{2};

/// Calls `each` for what stands under `key`; for nothing where it is no array.
void for_each(const element& of, std::string_view key, const std::function<void(element)>& each) {
  simdjson::dom::array all;
  if (of[key].get(all) == simdjson::SUCCESS) {
    for (const element one : all) {
      each(one);
    }
  }
}

/// Escaped, and no longer than a line of the terminal.
std::string word_of(const element& of, std::string_view key, std::size_t most) {
  std::string_view text;
  (void)of[key].get(text);
  return one_line(text.substr(0, most));
}

/// A socket that is connected to `address`; -1 where no server answers there.
OwnedDescriptor connected_to(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  const bool is_port = colon != std::string::npos && address.find('/') == std::string::npos;
  OwnedDescriptor socket(::socket(is_port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  const auto connects = [&](const auto& to) {
    return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
  };
  if (is_port) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(std::atoi(address.c_str() + colon + 1)));
    return connects(to) ? std::move(socket) : OwnedDescriptor();
  }
  try {
    const SocketPath path(address);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    if (path.address.size() < sizeof(to.sun_path)) {
      path.address.copy(to.sun_path, path.address.size());
      return connects(to) ? std::move(socket) : OwnedDescriptor();
    }
  } catch (const std::system_error&) {  // its folder is not there
  }
  return {};
}

}  // namespace

std::optional<std::string> get_status(const std::string& address, const std::string& page) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  const OwnedDescriptor socket = connected_to(address);
  const std::string request = "GET " + page + " HTTP/1.0\r\n\r\n";
  if (socket.get() < 0 || ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
    return std::nullopt;
  }
  std::string answer;
  std::array<char, 4096> chunk{};
  for (bool is_there = true; is_there;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    pollfd more{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (answer.size() > kMostAnswer || left.count() <= 0 ||
        ::poll(&more, 1, static_cast<int>(left.count())) != 1) {
      return std::nullopt;
    }
    const ssize_t got = ::recv(socket.get(), chunk.data(), chunk.size(), 0);
    is_there = got > 0;
    answer.append(chunk.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  const std::size_t body = answer.find("\r\n\r\n");
  return body == std::string::npos || answer.find(" 200 ") > body
             ? std::nullopt
             : std::optional(answer.substr(body + 4));
}

std::optional<std::string> waits_text(const std::string& json) {
  simdjson::dom::parser parser;
  element all;
  if (parser.parse(json).get(all) != simdjson::SUCCESS || !all.is_object()) {
    return std::nullopt;
  }
  struct Wait {
    double since_s;
    std::string line;
  };
  std::vector<Wait> found;
  for_each(all, "scopes", [&](const element& scope) {
    for_each(scope, "tasks", [&](const element& task) {
      double since_s = 0;
      if (task["since_s"].get(since_s) == simdjson::SUCCESS) {
        found.push_back(
            {since_s, fmt::format("{:9.3f} s  {:<20} {}", since_s, word_of(task, "name", 80),
                                  word_of(task, "awaits", 200))});
      }
    });
  });
  std::ranges::sort(found, std::greater(), &Wait::since_s);
  found.resize(std::min(found.size(), kShownTasks));
  std::string text = "waits     since      task                 for\n";
  for (const Wait& wait : found) {
    text += "      " + wait.line + "\n";
  }
  std::size_t shown = 0;
  for_each(all, "actors", [&](const element& actor) {
    std::uint64_t depth = 0;
    if (actor["depth"].get(depth) == simdjson::SUCCESS && depth > 0 && ++shown <= kShownMailboxes) {
      text += fmt::format("mailbox   {}: {} waiting\n", word_of(actor, "name", 80), depth);
    }
  });
  return text;
}

}  // namespace tandem
