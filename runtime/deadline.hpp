// runtime/deadline.hpp — the exception of an await that did not end before its deadline.
#pragma once

#include <string>

#include "runtime/util/error.hpp"

namespace tandem {

class DeadlineExceeded : public Error {
 public:
  /// An ask was not answered.
  DeadlineExceeded(const char* request, const char* actor);
  /// Something else, said by `text`.
  explicit DeadlineExceeded(const std::string& text) : Error(ExitCode::kFailure, text) {}
};

}  // namespace tandem
