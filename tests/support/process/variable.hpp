// tests/support/process/variable.hpp — a variable of the environment that has its former value
// again at the end of a test.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace tandem::test {

class Variable {
 public:
  /// `value` absent: the variable is not set.
  Variable(std::string name, const std::optional<std::string>& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) {
      before_ = before;
    }
    set(value);
  }
  ~Variable() { set(before_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

  void set(const std::optional<std::string>& value) const {
    value ? ::setenv(name_.c_str(), value->c_str(), 1) : ::unsetenv(name_.c_str());
  }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace tandem::test
