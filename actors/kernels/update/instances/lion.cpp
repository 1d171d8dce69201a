#define TANDEM_UPDATE update_lion
#define TANDEM_STEP LionStep
#define TANDEM_FRAME update_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
