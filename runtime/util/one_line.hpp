// runtime/util/one_line.hpp — text of strangers, names of files among it, as one line of a
// terminal. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

/// `text` with its control characters (newlines, escape sequences, those of Latin-1 too) and the
/// bytes that are no UTF-8 written as C++ writes them in literals: what a message quotes can
/// neither forge a second line nor steer the terminal.
[[nodiscard]] std::string one_line(std::string_view text);
/// The same for several lines: the newlines between them stay.
[[nodiscard]] std::string escaped_lines(std::string_view text);

}  // namespace tandem
