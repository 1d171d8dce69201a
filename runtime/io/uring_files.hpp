// runtime/io/uring_files.hpp — file operations by io_uring: the loop's own ring.
//
// Operations of one round of the loop are submitted together; those that do not fit the ring wait
// in a queue. Completions are taken while the loop is awake (Poller), and an eventfd in the reactor
// ends its sleep. Operations that the kernel's ring does not have (size, a folder's entries, fsync
// of a folder, free space, whatever an old kernel lacks) go to threads instead.
// On a machine without liburing, no_uring.cpp stands behind this header and says so.
// Thread rule: the loop's thread; while operations are on their way, the loop stays on one
// thread.
// Cancel rule: an operation that was not submitted yet leaves at once. The kernel is asked to
// cancel the others, and its answer is awaited.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "runtime/io/file_backend.hpp"

namespace tandem::detail {

struct UringSupport {
  bool usable = false;
  std::string what;  // "single issuer, deferred task work", or why it is not usable
};

/// Tells whether io_uring is usable; tried out once per process, by making a ring.
[[nodiscard]] const UringSupport& uring_support();

struct UringOptions {
  unsigned entries = 128;  // operations in the kernel at a time
  // transfers of at least this size go to the kernel's workers at once
  std::size_t worker_bytes = std::size_t{128} << 10;
  int threads = 2;  // for what the ring cannot do; started when needed
  std::string name = "io";
};

/// Called only if uring_support().usable; throws an Error if a ring cannot be made all the same.
[[nodiscard]] std::unique_ptr<FileBackend> make_uring_files(EventLoop& loop,
                                                            const UringOptions& options);

}  // namespace tandem::detail
