// `tandem`: the subcommands of ./tandem that are not training itself. `tandem COMMAND --help`
// says more.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "engine/types/version.hpp"
#include "examples/support/program.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"
#include "tools/cli/commands.hpp"

namespace tandem {
namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
  std::string_view what;
};

constexpr std::array kCommands = {
    Command{"config", run_config, "check a DeepSpeed JSON and print what becomes of every key"},
    Command{"schedule", run_schedule, "the learning rate of each step of a DeepSpeed JSON"},
    Command{"tokenize", run_tokenize, "token ids of JSON strings on standard input"},
    Command{"inspect", run_inspect, "records as training learns from them, with their mask"},
    Command{"generate", run_generate, "continue a text with a saved model"},
    Command{"logits", run_logits, "logits of a model for token ids on standard input"},
    Command{"parity", run_parity, "compare the engine with reference outputs beside a checkpoint"},
    Command{"plan", run_plan, "the memory that a run would need, and whether it fits"},
    Command{"checkpoint", run_checkpoint, "what a checkpoint holds, and whether it is whole"},
    Command{"convert", run_convert, "a checkpoint of DeepSpeed, torch or Tandem in another form"},
    Command{"merge", run_merge, "adapters and their base model as one model"},
    Command{"launch", run_launch, "start N ranks of a program on this host"},
    Command{"doctor", run_doctor, "what this machine offers, and what would be slow on it"},
};

void print_help() {
  fmt::print("tandem {}\nUsage: tandem COMMAND [flags]\n\nCommands:\n", version());
  for (const Command& command : kCommands) {
    fmt::print("  {:<10} {}\n", command.name, command.what);
  }
  fmt::print("\n`tandem COMMAND --help` lists the flags of a command.\n");
}

/// What a command prints is its result. A reader that has gone wanted no more of it.
void require_written_output(int code) {
  const bool lost = std::fflush(stdout) != 0 && errno != EPIPE && errno != EBADF;
  if (code == 0 && lost) {
    throw failure(ExitCode::kFailure, "output", "cannot write to the standard output: {}",
                  std::strerror(errno));
  }
}

int dispatch(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h") {
    print_help();
    return 0;
  }
  if (name == "--version") {
    fmt::print("tandem {}\n", version());
    return 0;
  }
  const auto command = std::ranges::find(kCommands, name, &Command::name);
  if (command != kCommands.end()) {
    const int code = command->run(argc - 1, argv + 1);
    require_written_output(code);
    return code;
  }
  std::array<std::string_view, kCommands.size() + 2> names = {"--help", "--version"};
  std::ranges::transform(kCommands, names.begin() + 2, &Command::name);
  if (name.empty()) {
    throw user_error("flags", "no command given; --help lists the commands");
  }
  throw user_error("flags", "unknown {} {}; {}", name.starts_with('-') ? "flag" : "command", name,
                   name_hint(name, names));
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::guarded_main([&] { return tandem::dispatch(argc, argv); });
}
