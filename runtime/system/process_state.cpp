#include "runtime/system/process_state.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>

namespace tandem {

ProcessState process_state(pid_t process) {
  if (process <= 0) {
    return {};
  }
  std::string text;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", process)), text);
  // "pid (name) state parent group": the name may hold anything, the last parenthesis ends it.
  const std::size_t end = text.rfind(')');
  ProcessState found{.process = process};
  if (end == std::string::npos || std::sscanf(text.c_str() + end + 1, " %c %d %d", &found.state,
                                              &found.parent, &found.group) != 3) {
    return {};
  }
  return found;
}

char stopped_state(pid_t process) {
  const char state = process_state(process).state;
  return state == 'T' || state == 't' ? state : '\0';
}

std::vector<ProcessState> all_processes() {
  std::vector<ProcessState> all;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) {
      if (const ProcessState found = process_state(std::stoi(name)); found.process != 0) {
        all.push_back(found);
      }
    }
  }
  return all;
}

}  // namespace tandem
