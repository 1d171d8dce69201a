// examples/support/program.hpp — what every program of the project does around its work: flags,
// errors, exit codes.
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

/// Runs `body` and returns its exit code. An Error becomes "error: <text>" on stderr and its exit
/// code, any other exception exit code 1. A failure is also written to the file
/// TORCHELASTIC_ERROR_FILE names, as torchrun expects it.
int guarded_main(const std::function<int()>& body);

/// Parses the command line. Returns the exit code when the program has nothing more to do (--help,
/// --version), nothing when it should go on. An unknown flag is a user_error that names the nearest
/// known one, whatever else is missing. `app` gets a --version flag when it has none.
[[nodiscard]] std::optional<int> parse_command_line(CLI::App& app, int argc,
                                                    const char* const* argv);

/// Each throws user_error, naming the flag, where its value is not as it says.
void require_one_of(std::string_view flag, const std::string& value,
                    std::initializer_list<std::string_view> allowed);
void require_above_zero(std::string_view flag, double value);
void require_not_negative(std::string_view flag, double value);

}  // namespace tandem
