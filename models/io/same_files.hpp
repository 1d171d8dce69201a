// models/io/same_files.hpp — checks that each host's own copy of a model's weights has the same
// bytes.
//
// The first rank of each host hashes them on a thread of its own, beside what the rank does
// meanwhile; nothing is read where all ranks are of one host.
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
  /// `what` they are, for messages. `ranks` outlives it.
  SameFiles(Communicator& ranks, std::string what, std::vector<std::filesystem::path> files);

  /// Throws Error(kPeer) on every rank where a file differs between two hosts, or is not on one of
  /// them, with the file and the hosts; user_error where one cannot be read. All ranks call it,
  /// once.
  void require();

 private:
  Communicator& ranks_;
  std::string what_;
  std::vector<std::string> hosts_;  // empty: all ranks are of one
  std::future<std::string> own_;    // of a host's first rank: a line for each file
};

}  // namespace tandem
