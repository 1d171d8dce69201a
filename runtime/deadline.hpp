// runtime/deadline.hpp — the exception of an await that did not end before its deadline.
#pragma once

#include <string>

#include "runtime/util/error.hpp"

namespace tandem {

class DeadlineExceeded : public Error {
 public:
  /// The error of an ask that was not answered in time.
  DeadlineExceeded(const char* request, const char* actor);
  /// The error of another await, which `text` describes.
  explicit DeadlineExceeded(const std::string& text) : Error(ExitCode::kFailure, text) {}
};

}  // namespace tandem
