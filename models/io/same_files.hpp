// models/io/same_files.hpp — checks that each host's own copy of a model's weights has the same
// bytes.
//
// The first rank of each host hashes the files on a separate thread, while the rank goes on.
// Nothing is read if all ranks are on one host.
//
//   SameFiles weights(ranks, "weights", files);
//   ... load them ...
//   weights.require();
#pragma once

#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "engine/distributed/communicator.hpp"

namespace tandem {

class SameFiles {
 public:
  /// `what`: what messages call the files. `ranks` must outlive this object.
  SameFiles(Communicator& ranks, std::string what, std::vector<std::filesystem::path> files);

  /// Throws Error(kPeer) on every rank, naming the file and the hosts, if a file differs between
  /// two hosts or is missing on one of them; user_error if a file cannot be read. All ranks call
  /// it, once.
  void require();

 private:
  Communicator& ranks_;
  std::string what_;
  std::vector<std::string> hosts_;  // empty: all ranks are on one
  std::future<std::string> own_;    // of a host's first rank: a line for each file
};

}  // namespace tandem
