// engine/device/compute_thread.hpp — makes a thread a compute lane: the only thread of a rank that
// calls ATen.
#pragma once

namespace tandem {

/// Binds the calling thread to its role as compute lane: `threads` for ATen, autograd stays on this
/// thread. The first in a process settles ATen's vector functions, and whoever comes meanwhile
/// waits (engine/device/vml.hpp).
void prepare_compute_thread(int threads);

}  // namespace tandem
