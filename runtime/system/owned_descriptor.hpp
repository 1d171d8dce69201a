// runtime/system/owned_descriptor.hpp — a descriptor that closes itself, the passing of descriptors
// over a Unix socket, and the process at its other end. Any thread; one at a time.
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
/// Returns the process that connected or listened, as the kernel knows it; nullopt if it is not a
/// Unix socket.
[[nodiscard]] std::optional<SocketPeer> peer_of(int socket) noexcept;

/// Sends `bytes` and, beside them, a copy of `descriptor`. Returns the bytes sent, or -1 with the
/// reason in errno.
[[nodiscard]] ssize_t send_with_descriptor(int socket, std::span<const std::byte> bytes,
                                           int descriptor) noexcept;

struct Received {
  ssize_t bytes = -1;          // 0: the socket's end; -1: errno says why
  OwnedDescriptor descriptor;  // the one that came beside them; -1: none
};
/// Waits until `into` is full, or for the socket's end.
[[nodiscard]] Received receive_with_descriptor(int socket, std::span<std::byte> into) noexcept;

}  // namespace tandem
