// trainer/program/reexec.hpp — process-wide settings of training programs. Call it first in main().
#pragma once

namespace tandem {

/// Some defaults of the system's libraries cost a training run dearly, and can only be set for the
/// whole process:
///  - malloc returns large blocks to the system at once, so every step takes the page faults of its
///    activations again (8 % of a bf16 step). Freed memory is kept instead.
/// The other settings are read when a library is loaded. So a program that contains this function
/// starts itself once more with them in its environment, unless the user has set a policy of
/// waiting. It does so before main(), and before the libraries' initialisers, of which LibTorch's
/// take a fifth of a second:
///  - libgomp's waiting threads (ATen's team) spin for about a millisecond, on a core that the
///    optimizer's pool or another process needs; measured with a busy neighbour, steps take 2.5
///    times as long.
///  - oneDNN and ATen's wrapper around it each keep 1024 compiled matmuls. Every length of a batch
///    has some twenty of its own, so a small model in bf16 took 480 MiB more after 600 steps than
///    at the first. 64 each hold three lengths; making one anew costs no measurable time.
void reexec_with_tuned_env();

}  // namespace tandem
