#define TANDEM_UPDATE update_lion_int8
#define TANDEM_STEP LionStep
#define TANDEM_FRAME update_block_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
