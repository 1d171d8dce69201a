// engine/config/json_text.hpp — strips comments and trailing commas from hand-written JSON, and
// finds the line of each member. The JSON library gives values but no positions, which messages
// about a mistyped file need.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

/// The text with a byte-order mark, //, # and /* */ comments, and commas before } or ] replaced by
/// spaces; every other byte, and every newline, stays where it was.
[[nodiscard]] std::string strip_comments(std::string_view text);

/// 1-based line of a byte.
[[nodiscard]] std::size_t line_of(std::string_view text, std::size_t offset);

/// A member of an object, in the order of the text.
struct JsonMember {
  std::string path;  // "zero_optimization.stage"; elements of arrays add "[0]"
  std::size_t line;
};

/// Checks the structure of stripped JSON and lists all members. Throws user_error("config",
/// "ORIGIN:LINE: ...") for the first thing that is out of place, for a key given twice in one
/// object, and for nesting deeper than 64.
[[nodiscard]] std::vector<JsonMember> scan_json(std::string_view stripped, std::string_view origin);

}  // namespace tandem
