#include "runtime/supervision/socket_path.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/un.h>

namespace tandem {

SocketPath::SocketPath(const std::string& path) : address(path) {
  const std::size_t slash = path.rfind('/');
  if (path.size() < sizeof(sockaddr_un::sun_path) || slash == std::string::npos) {
    return;
  }
  folder =
      OwnedDescriptor(::open(path.substr(0, slash + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) {
    throw std::system_error(errno, std::system_category(), path);
  }
  address = fmt::format("/proc/self/fd/{}{}", folder.get(), path.substr(slash));
}

}  // namespace tandem
