// runtime/supervision/socket_path.hpp — a name for a Unix socket whose path may have any length.
#pragma once

#include <string>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

/// A socket's address holds 107 bytes of a path. A longer path is given by a descriptor of its
/// folder, so `address` is valid while this lives; the name after the last slash must be short.
struct SocketPath {
  /// Where the folder cannot be opened, `address` is the path, which bind() or connect() refuses.
  explicit SocketPath(const std::string& path);

  OwnedDescriptor folder;
  std::string address;
};

}  // namespace tandem
