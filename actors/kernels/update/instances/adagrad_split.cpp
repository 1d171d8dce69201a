#define TANDEM_UPDATE update_adagrad_split
#define TANDEM_STEP AdagradStep
#define TANDEM_FRAME update_packed_elements<float>
#include "actors/kernels/update/instances/instance-inl.hpp"
