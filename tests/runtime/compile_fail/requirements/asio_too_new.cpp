// error: look whether this Asio's reactor still sleeps on it alone
// A version of Asio whose reactor was not looked at is refused where the loop reads its
// descriptor.
#include <asio/version.hpp>

#undef ASIO_VERSION
#define ASIO_VERSION 103900
#include "runtime/detail/foreign_wake.cpp"
