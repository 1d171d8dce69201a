// error: Tandem needs exceptions and RTTI: compile without -fno-exceptions and -fno-rtti
// flag: -fno-rtti
#include "runtime/util/build.hpp"
