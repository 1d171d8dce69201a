// tests/fuzz/main.cpp — the program around a target: libFuzzer, with this project's limits, from
// the committed seeds.
//
//   fuzz_TARGET [-runs=N] [-seed=S] [flags of libFuzzer] [FOLDER or FILE ...]
//
// Without a folder or file: from the seeds, and what is found on the way stays in a folder of the
// process. The last line is a JSON object with the runs and their rate.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <errno.h>
#include <unistd.h>

#include "runtime/util/error.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerRunDriver(int* argc, char*** argv,
                                   int (*callback)(const std::uint8_t* data, std::size_t size));

namespace tandem::fuzz {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// TARGET of fuzz_TARGET.
std::string target() {
  const std::string name = program_invocation_short_name;
  return name.substr(name.find('_') + 1);
}

long runs = 0;
long refused = 0;
Clock::time_point began;

int run(const std::uint8_t* data, std::size_t size) {
  ++runs;
  try {
    read({reinterpret_cast<const char*>(data), size});
  } catch (const Error& error) {
    ++refused;
    expect(error.code() == ExitCode::kUserInput || error.code() == ExitCode::kRefused,
           "a bad file is wrong input or a size that fits nowhere");
  }
  return 0;
}

/// libFuzzer leaves by exit().
void finish() {
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  std::printf(
      "{\"target\": \"%s\", \"runs\": %ld, \"refused\": %ld, \"seconds\": %.1f, \"runs_per_s\": "
      "%.0f}\n",
      target().c_str(), runs, refused, seconds, static_cast<double>(runs) / seconds);
  std::error_code ignored;
  fs::remove_all(folder(), ignored);
}

}  // namespace

const fs::path& folder() {
  static const fs::path path = [] {
    std::error_code no;
    const fs::path in_memory = "/dev/shm";
    fs::path made = (fs::is_directory(in_memory, no) ? in_memory : fs::temp_directory_path()) /
                    ("tandem-fuzz-" + std::to_string(getpid()));
    fs::create_directories(made);
    return made;
  }();
  return path;
}

fs::path put(std::string_view input, std::string_view name) {
  fs::path path = folder() / name;
  std::ofstream(path, std::ios::binary)
      .write(input.data(), static_cast<std::streamsize>(input.size()));
  return path;
}

const fs::path& corpus() {
  static const fs::path path = TANDEM_FUZZ_CORPUS;
  return path;
}

void expect(bool holds, const char* promise) {
  if (!holds) {
    std::fprintf(stderr, "broken promise: %s\n", promise);
    std::abort();
  }
}

}  // namespace tandem::fuzz

int main(int argc, char** argv) {
  using namespace tandem::fuzz;
  began = Clock::now();
  std::vector<std::string> arguments = {argv[0], "-timeout=10", "-rss_limit_mb=2048",
                                        "-max_len=16384", "-verbosity=0"};
  bool given = false;
  for (int i = 1; i < argc; ++i) {
    arguments.emplace_back(argv[i]);
    given |= arguments.back().front() != '-';
  }
  if (!given) {
    fs::create_directories(folder() / "found");
    arguments.push_back((folder() / "found").string());
    arguments.push_back((corpus() / target()).string());
  }
  std::atexit(finish);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  int count = static_cast<int>(arguments.size());
  char** list = pointers.data();
  return LLVMFuzzerRunDriver(&count, &list, run);
}
