// trainer/cifar/tutorial_flags.hpp — the flags of cifar10_tutorial, and the file of its losses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/metrics/line_file.hpp"
#include "trainer/cifar/aten_net.hpp"

namespace tandem {

struct TutorialFlags {
  std::string data_dir;
  std::string output_dir;
  std::string init_weights;
  double epochs = 2;
  std::int64_t batch_size = 4;
  std::int64_t steps = 0;
  std::int64_t log_interval = 2000;
  std::uint64_t seed = 0;
  bool shuffle = true;
  int compute_threads = 0;
  SgdOptions sgd;
};

/// Parses and checks the command line; returns nullopt if the program is done (--help, --version).
/// Throws user_error.
std::optional<TutorialFlags> parse_tutorial_flags(int argc, const char* const* argv);

/// Writes losses.jsonl, a line for each step, if there is an output folder.
class LossFile {
 public:
  explicit LossFile(const std::string& folder);
  void write(std::int64_t step, double loss);

 private:
  std::optional<LineFile> file_;
};

}  // namespace tandem
