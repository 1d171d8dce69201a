// runtime/supervision/socket_path.hpp — a name for a Unix socket whose path may have any length.
#pragma once

#include <string>

#include "runtime/system/owned_descriptor.hpp"

namespace tandem {

/// A socket's address holds 107 bytes of a path. A longer path is given by a descriptor of its
/// folder, so `address` is valid while this lives; the name after the last slash must be short.
struct SocketPath {
  /// Throws std::system_error if the folder of a longer path cannot be opened.
  explicit SocketPath(const std::string& path);

  OwnedDescriptor folder;
  std::string address;
};

}  // namespace tandem
