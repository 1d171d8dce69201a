#define TANDEM_UPDATE update_adam
#define TANDEM_STEP AdamStep
#define TANDEM_FRAME update_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
