#include "engine/tensors/compute_thread.hpp"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include "engine/tensors/tensor_memory.hpp"
#include "engine/tensors/vml.hpp"

namespace tandem {

void prepare_compute_thread(int threads) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  at::set_num_threads(threads);
  use_tensor_memory();
  warm_up_vml();
}

}  // namespace tandem
