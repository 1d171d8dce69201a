// runtime/system/process_state.hpp — the state of other processes, as the kernel reports it. Any
// thread; read anew at each call.
#pragma once

#include <vector>

#include <sys/types.h>

namespace tandem {

struct ProcessState {
  pid_t process = 0;
  char state = 0;  // of its first thread: 'R', 'S', 'D', 'T' (stopped), 't' (traced), 'Z', ...
  pid_t parent = 0;
  pid_t group = 0;
};

/// Returns the state of `process`; all fields are 0 if it does not exist.
[[nodiscard]] ProcessState process_state(pid_t process);
/// Returns 'T' or 't' if the process is stopped by a signal or by a tracer; else 0.
[[nodiscard]] char stopped_state(pid_t process);
/// Every process of this pid namespace.
[[nodiscard]] std::vector<ProcessState> all_processes();

}  // namespace tandem
