// runtime/util/nearest.hpp — "did you mean": the known name that is nearest to a mistyped one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

/// Returns the number of insertions, deletions, replacements and swaps of neighbours that turn `a`
/// into `b` (each character takes part in at most one swap). Upper and lower case, and '-' and '_',
/// count as equal: they are the same name to a person.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// Returns edit_distance(), or less if one name has all the words of the other ("warmup_num_steps"
/// has those of "warmup_steps"): 1 for the slip and 1 for each word too many. Words are what '_'
/// and '-' separate.
[[nodiscard]] std::size_t name_distance(std::string_view a, std::string_view b);

/// Returns the candidate with the smallest name_distance(), the first of equals; empty if there are
/// no candidates.
[[nodiscard]] std::string_view nearest_name(std::string_view name,
                                            std::span<const std::string_view> candidates);

/// Returns that candidate if the name is likely a slip of it; empty if all are far.
[[nodiscard]] std::string_view likely_name(std::string_view name,
                                           std::span<const std::string_view> candidates);

/// Returns the end of an error message: `did you mean "x"?` for a likely slip, `the nearest known
/// name is "x"` for a far one, `no name is known here` without candidates.
[[nodiscard]] std::string name_hint(std::string_view name,
                                    std::span<const std::string_view> candidates);

}  // namespace tandem
