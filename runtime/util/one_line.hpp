// runtime/util/one_line.hpp — shows the text of strangers (names of files, too) as one line of a
// terminal. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

/// Returns `text` with its control characters (newlines, escape sequences, those of Latin-1 too)
/// and the bytes that are not UTF-8 written as in C++ literals, so that text that a message quotes
/// can neither forge a second line nor control the terminal.
[[nodiscard]] std::string one_line(std::string_view text);
/// Returns the same for several lines: the newlines between them stay.
[[nodiscard]] std::string escaped_lines(std::string_view text);

}  // namespace tandem
