// error: a pool runs plain functions
#include "runtime/cpu_pool.hpp"

using namespace tandem;

Task<> work(std::size_t chunk);
Task<> compute(CpuPool* pool) { co_await pool->for_chunks(8, &work); }
