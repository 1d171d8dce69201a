// `tandem`: the subcommands of ./tandem that are not training itself. `tandem COMMAND --help`
// says more.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "engine/types/version.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/nearest.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {
namespace {

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
  std::string_view what;
};

int run_completion(int argc, char** argv);

constexpr std::array kCommands = {
    Command{"config", run_config, "check a DeepSpeed JSON and print what becomes of every key"},
    Command{"schedule", run_schedule, "the learning rate of each step of a DeepSpeed JSON"},
    Command{"tokenize", run_tokenize, "token ids of JSON strings on standard input"},
    Command{"inspect", run_inspect, "records as training learns from them, with their mask"},
    Command{"generate", run_generate, "continue a text with a saved model"},
    Command{"logits", run_logits, "logits of a model for token ids on standard input"},
    Command{"parity", run_parity, "compare the engine with reference outputs beside a checkpoint"},
    Command{"plan", run_plan, "the memory that a run would need, and whether it fits"},
    Command{"report", run_report, "one HTML page of runs: curves, overlap, memory, config keys"},
    Command{"top", run_top, "a run that goes on: step, loss, who waits for what, memory"},
    Command{"checkpoint", run_checkpoint, "what a checkpoint holds, and whether it is whole"},
    Command{"convert", run_convert, "a checkpoint of DeepSpeed, torch or Tandem in another form"},
    Command{"merge", run_merge, "adapters and their base model as one model"},
    Command{"launch", run_launch, "start ranks of a program on this host, or on several"},
    Command{"doctor", run_doctor, "what this machine offers, and what would be slow on it"},
    Command{"completion", run_completion, "completion of commands and flags, for bash or zsh"},
};

/// Commands that are programs of their own, beside this one.
struct Program {
  std::string_view name;
  const char* file;
  std::string_view what;
};

constexpr std::array kPrograms = {
    Program{"train", "finetune_zero3", "fine-tune a model; without flags: the demo"},
    Program{"cifar10", "cifar10", "the CIFAR-10 example's net, with the engine"},
    Program{"cifar10-tutorial", "cifar10_tutorial", "the same net in a plain loop"},
};

[[noreturn]] void become(const Program& program, char** argv) {
  const auto path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / program.file;
  ::execv(path.c_str(), argv);
  throw failure(ExitCode::kFailure, "tandem", "cannot start {}: {}", path.string(),
                std::strerror(errno));
}

void print_help() {
  fmt::print("tandem {}\nUsage: tandem COMMAND [flags]\n\nCommands:\n", version());
  for (const auto& [name, file, what] : kPrograms) {
    fmt::print("  {:<16} {}\n", name, what);
  }
  for (const auto& [name, run, what] : kCommands) {
    fmt::print("  {:<16} {}\n", name, what);
  }
  fmt::print("\n`tandem COMMAND --help` lists the flags of a command.\n");
}

int run_completion(int argc, char** argv) {
  std::string shell;
  std::string others;
  CLI::App app("Prints a script that completes commands and flags", "tandem completion");
  app.add_option("SHELL", shell, "bash or zsh")->required();
  app.add_option("--and", others, "further commands, of a script around this program");
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  require_one_of("SHELL", shell, {"bash", "zsh"});
  std::set<std::string_view> names;
  for (const Program& program : kPrograms) {
    names.insert(program.name);
  }
  for (const Command& command : kCommands) {
    names.insert(command.name);
  }
  std::istringstream words(others);
  const std::vector<std::string> more{std::istream_iterator<std::string>(words), {}};
  names.insert(more.begin(), more.end());
  fmt::print("{}", completion_script(shell, fmt::format("{}", fmt::join(names, " "))));
  return 0;
}

/// The output of a command is its result. A reader that has gone wanted no more of it.
void require_written_output(int code) {
  const bool lost = std::fflush(stdout) != 0 && errno != EPIPE && errno != EBADF;
  if (code == 0 && lost) {
    throw failure(ExitCode::kFailure, "output", "cannot write to the standard output: {}",
                  std::strerror(errno));
  }
}

int dispatch(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
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
  const auto program = std::ranges::find(kPrograms, name, &Program::name);
  if (program != kPrograms.end()) {
    become(*program, argv + 1);
  }
  std::vector<std::string_view> names = {"--help", "--version"};
  std::ranges::transform(kPrograms, std::back_inserter(names), &Program::name);
  std::ranges::transform(kCommands, std::back_inserter(names), &Command::name);
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
