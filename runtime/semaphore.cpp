#include "runtime/semaphore.hpp"

#include "runtime/util/error.hpp"

namespace tandem {

void Semaphore::throw_too_many(std::size_t count) const {
  throw user_error("semaphore",
                   "{} permits were asked for, of {} that it has; ask for fewer, or make it with "
                   "more",
                   count, permits_);
}

}  // namespace tandem
