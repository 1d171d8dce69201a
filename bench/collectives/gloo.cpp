#include "bench/collectives/gloo.hpp"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

namespace tandem::bench {

std::map<std::pair<std::string, std::size_t>, double> time_gloo(
    std::uint32_t world, const std::vector<std::size_t>& sizes) {
  std::map<std::pair<std::string, std::size_t>, double> times;
  const std::string root = TANDEM_SOURCE_DIR;
  const std::string python = root + "/.venv/bin/python";
  if (!std::filesystem::exists(python)) {
    fmt::print(stderr, "bench: {} is not there, so no comparison with Gloo; ./tandem setup\n",
               python);
    return times;
  }
  std::string command = fmt::format("'{}' '{}/bench/collectives/gloo.py' {}", python, root, world);
  for (const std::size_t size : sizes) {
    command += fmt::format(" {}", size);
  }
  std::FILE* output = ::popen(command.c_str(), "r");
  char name[64];
  std::size_t bytes = 0;
  double seconds = 0;
  while (output != nullptr && std::fscanf(output, "%63s %zu %lf", name, &bytes, &seconds) == 3) {
    times[{name, bytes}] = seconds;
  }
  if (output == nullptr || ::pclose(output) != 0) {
    fmt::print(stderr, "bench: the script with Gloo failed; its figures are missing\n");
  }
  return times;
}

}  // namespace tandem::bench
