// actors/kernels/optimizers/rules-inl.hpp — the rules of all optimizers; each file has its own
// guard for Highway's passes.
#include "actors/kernels/optimizers/adagrad_rule-inl.hpp"
#include "actors/kernels/optimizers/adam_rule-inl.hpp"
#include "actors/kernels/optimizers/along_rule-inl.hpp"
#include "actors/kernels/optimizers/lion_rule-inl.hpp"
#include "actors/kernels/optimizers/sgd_rule-inl.hpp"
