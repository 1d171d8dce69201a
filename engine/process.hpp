// engine/process.hpp — settings of the whole process that a training program wants. First thing in main().
#pragma once

namespace tandem {

/// Two defaults of the system's libraries cost a training step dearly, and both can only be set for the whole process:
///  - libgomp's waiting threads (ATen's team) spin for about a millisecond, on a core that the optimizer's pool or another
///    process needs; measured with a busy neighbour, steps take 2.5 times as long. The limit is read when the library is
///    loaded, so the program is started anew with a short one, unless the user has set a policy.
///  - malloc returns large blocks to the system at once, so every step takes the page faults of its activations again
///    (8 % of a bf16 step). Freed memory is kept instead.
void tune_process(char** argv);

}  // namespace tandem
