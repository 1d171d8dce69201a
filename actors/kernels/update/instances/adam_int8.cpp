#define TANDEM_UPDATE update_adam_int8
#define TANDEM_STEP AdamStep
#define TANDEM_FRAME update_block_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
