#define TANDEM_UPDATE update_adam_split
#define TANDEM_STEP AdamStep
#define TANDEM_FRAME update_packed_elements<float>
#include "actors/kernels/update/instances/instance-inl.hpp"
