#define TANDEM_UPDATE update_adagrad
#define TANDEM_STEP AdagradStep
#define TANDEM_FRAME update_elements
#include "actors/kernels/update/instances/instance-inl.hpp"
