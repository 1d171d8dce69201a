// engine/tensors/compute_thread.hpp — makes a thread a compute lane: the only thread of a rank that
// calls ATen.
#pragma once

namespace tandem {

/// Binds the calling thread to its role as compute lane: `threads` for ATen, autograd stays on this
/// thread. The first call in a process warms ATen's vector functions up, and other callers wait for
/// it (engine/tensors/vml.hpp); it also gives ATen a memory for large tensors (tensor_memory.hpp).
void prepare_compute_thread(int threads);

}  // namespace tandem
