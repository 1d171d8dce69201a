// trainer/program/program.hpp — the code that every program shares: flags, errors, exit codes.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace tandem {

/// Runs `body` and returns its exit code. An Error becomes "error: <text>" on stderr, in one line,
/// and its exit code; an error of std::filesystem exit code 2 (1, where the disk is full or
/// broken); any other exception exit code 1. A failure is also written to the file that
/// TORCHELASTIC_ERROR_FILE names, as torchrun expects. SIGPIPE and SIGXFSZ are ignored from here
/// on, and standard streams that are closed lead to /dev/null.
int guarded_main(const std::function<int()>& body);

/// Prints "warning: <text>" on stderr, in one line.
void print_warning(std::string_view text);

/// Parses the command line. Returns the exit code when the program has nothing more to do (--help,
/// --version), nullopt when it should go on. An unknown flag is a user_error, even if other flags
/// are missing: the message has a hint for another trainer's flag, or else a known flag with a
/// similar name. `app` gets a --version flag when it has none.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc,
                                                    const char* const* argv);

inline constexpr double kMostOfFlag = 1e15;  // of counts: exact, and more than any run reaches
inline constexpr double kMostRate = 1e6;     // of learning rates and the like, finite in fp32
inline constexpr double kMostGib = 1e9;

/// Each throws user_error, which names the flag, if the value does not meet the requirement.
void require_one_of(std::string_view flag, const std::string& value,
                    std::initializer_list<std::string_view> allowed);
void require_above_zero(std::string_view flag, double value, double at_most = kMostOfFlag);
void require_not_negative(std::string_view flag, double value, double at_most = kMostOfFlag);

/// Returns the steps of `epochs` epochs, which may be a fraction; a partial step counts as a step,
/// as in Transformers.
[[nodiscard]] std::int64_t steps_of_epochs(double epochs, std::int64_t steps_per_epoch);

/// Returns a number of GiB (0 and fractions are allowed) in bytes; throws user_error for a size
/// that no machine has.
[[nodiscard]] std::int64_t bytes_of_gib(std::string_view flag, double gib);

}  // namespace tandem
