// engine/tensors/compute_thread.hpp — makes a thread a compute lane: the only thread of a rank that
// calls ATen.
#pragma once

namespace tandem {

/// Makes the calling thread the compute lane: ATen uses `threads` threads, autograd runs on this
/// thread. The first call in a process warms up ATen's vector functions, while other callers wait
/// (engine/tensors/vml.hpp), and installs the allocator for large tensors (tensor_memory.hpp).
void prepare_compute_thread(int threads);

}  // namespace tandem
