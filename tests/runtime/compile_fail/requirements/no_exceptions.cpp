// error: Tandem needs exceptions and RTTI: compile without -fno-exceptions and -fno-rtti
// flag: -fno-exceptions
#include "runtime/util/build.hpp"
