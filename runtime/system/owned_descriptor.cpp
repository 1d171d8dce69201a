#include "runtime/system/owned_descriptor.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

namespace tandem {

OwnedDescriptor::~OwnedDescriptor() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

int OwnedDescriptor::release() noexcept { return std::exchange(descriptor_, -1); }

std::optional<SocketPeer> peer_of(int socket) noexcept {
  ucred who{};
  socklen_t bytes = sizeof(who);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0
             ? std::optional(SocketPeer{.process = who.pid, .user = who.uid})
             : std::nullopt;
}

namespace {

/// One message of `bytes` with room for a descriptor beside them.
struct Message {
  explicit Message(std::span<std::byte> bytes) noexcept : part{bytes.data(), bytes.size()} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
  }
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
};

}  // namespace

ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes,
                             int descriptor) noexcept {
  // An iovec does not know that sendmsg() only reads.
  Message message({const_cast<std::byte*>(bytes.data()), bytes.size()});
  cmsghdr* beside = CMSG_FIRSTHDR(&message.header);
  beside->cmsg_level = SOL_SOCKET;
  beside->cmsg_type = SCM_RIGHTS;
  beside->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(beside), &descriptor, sizeof(int));
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message.header, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

Received receive_with_descriptor(int socket, std::span<std::byte> into) noexcept {
  Message message(into);
  Received got;
  do {
    got.bytes = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (got.bytes < 0 && errno == EINTR);
  const cmsghdr* beside = CMSG_FIRSTHDR(&message.header);
  if (got.bytes >= 0 && beside != nullptr && beside->cmsg_level == SOL_SOCKET &&
      beside->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(beside), sizeof(int));
    got.descriptor = OwnedDescriptor(descriptor);
  }
  return got;
}

}  // namespace tandem
