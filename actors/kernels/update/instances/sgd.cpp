#define TANDEM_UPDATE update_sgd
#define TANDEM_STEP SgdStep
#define TANDEM_FRAME update_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
