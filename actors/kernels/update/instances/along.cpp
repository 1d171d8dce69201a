#define TANDEM_UPDATE update_along
#define TANDEM_STEP AlongStep
#define TANDEM_FRAME update_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
