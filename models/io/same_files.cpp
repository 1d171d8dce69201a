#include "models/io/same_files.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "actors/storage/hash_file.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

/// "HASH NAME" for each file.
std::string hashes_of(const std::vector<fs::path>& files) {
  std::string lines;
  for (const fs::path& file : files) {
    lines +=
        fmt::format("{} {}\n", content_hash_of(file, "model"), one_line(file.filename().string()));
  }
  return lines;
}

std::map<std::string, std::string> by_name(const std::string& lines) {
  std::map<std::string, std::string> hashes;
  std::istringstream text(lines);
  std::string line;
  while (std::getline(text, line)) {
    const std::size_t space = std::min(line.find(' '), line.size());
    hashes[line.substr(std::min(space + 1, line.size()))] = line.substr(0, space);
  }
  return hashes;
}

}  // namespace

SameFiles::SameFiles(Communicator& ranks, std::string what, std::vector<fs::path> files)
    : ranks_(ranks), what_(std::move(what)), hosts_(ranks.hosts()) {
  const auto me = static_cast<std::size_t>(ranks.rank());
  if (!hosts_.empty() &&
      std::ranges::find(hosts_, hosts_[me]) == hosts_.begin() + static_cast<std::ptrdiff_t>(me)) {
    std::ranges::sort(files);
    own_ = std::async(std::launch::async, &hashes_of, std::move(files));
  }
}

void SameFiles::require() {
  if (hosts_.empty()) {
    return;
  }
  const std::vector<std::string> said = ranks_.of_all_ranks(own_.valid() ? own_.get() : "");
  const std::map<std::string, std::string> first = by_name(said.front());
  for (std::size_t rank = 1; rank < said.size(); ++rank) {
    if (std::ranges::find(hosts_, hosts_[rank]) - hosts_.begin() !=
        static_cast<std::ptrdiff_t>(rank)) {
      continue;
    }
    const std::map<std::string, std::string> other = by_name(said[rank]);
    const auto check = [&](const std::string& name) {
      const auto hash_in = [&](const auto& hashes) {
        const auto found = hashes.find(name);
        return found == hashes.end() ? std::string("is not there")
                                     : "has the hash " + found->second;
      };
      if (hash_in(first) != hash_in(other)) {
        throw failure(
            ExitCode::kPeer, "ranks",
            "the {} differ: {} {} on host {}, {} on host {}; give all hosts the same files", what_,
            name, hash_in(first), hosts_.front(), hash_in(other), hosts_[rank]);
      }
    };
    for (const auto& [name, hash] : first) {
      check(name);
    }
    for (const auto& [name, hash] : other) {
      check(name);
    }
  }
}

}  // namespace tandem
