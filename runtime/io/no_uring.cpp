// Built instead of uring_files.cpp where liburing is not installed.
#include "runtime/io/uring_files.hpp"
#include "runtime/util/error.hpp"

namespace tandem::detail {

const UringSupport& uring_support() {
  static const UringSupport support{.usable = false, .what = "built without liburing"};
  return support;
}

std::unique_ptr<FileBackend> make_uring_files(EventLoop& /*loop*/,
                                              const UringOptions& /*options*/) {
  throw failure(ExitCode::kFailure, "io", "io_uring is not usable: {}", uring_support().what);
}

}  // namespace tandem::detail
