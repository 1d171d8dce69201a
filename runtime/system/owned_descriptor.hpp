// runtime/system/owned_descriptor.hpp — a descriptor that closes itself, descriptors that travel
// over a Unix socket, and who is at its other end. Any thread; one at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include <sys/types.h>

namespace tandem {

class OwnedDescriptor {
 public:
  OwnedDescriptor() noexcept = default;
  explicit OwnedDescriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  ~OwnedDescriptor();
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(other.release()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;

  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] int release() noexcept;

 private:
  int descriptor_ = -1;
};

struct SocketPeer {
  pid_t process = 0;  // 0: in another pid namespace
  uid_t user = 0;
};
/// As the kernel knows the process that connected or listened; nullopt: no Unix socket.
[[nodiscard]] std::optional<SocketPeer> peer_of(int socket) noexcept;

/// Sends `bytes` and, beside them, a copy of `descriptor`. Bytes sent, or -1 and why in errno.
[[nodiscard]] ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes,
                                           int descriptor) noexcept;

struct Received {
  ssize_t bytes = -1;          // 0: the socket's end; -1: why not, in errno
  OwnedDescriptor descriptor;  // what came beside them; -1: none
};
/// Waits for as many bytes as `into` has, or the socket's end.
[[nodiscard]] Received receive_with_descriptor(int socket, std::span<std::byte> into) noexcept;

}  // namespace tandem
