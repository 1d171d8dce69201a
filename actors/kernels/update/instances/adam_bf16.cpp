#define TANDEM_UPDATE update_adam_bf16
#define TANDEM_STEP AdamStep
#define TANDEM_FRAME update_packed_elements<Bf16Bits>
#include "actors/kernels/update/instances/instance-inl.hpp"
