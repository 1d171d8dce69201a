// tests/fuzz/fuzz.hpp — the interface of a fuzz target: one function that reads a stranger's bytes
// as the product does. An Error is a fine end; a crash, a sanitizer's report, ten seconds or two
// GiB are not, and neither is a broken promise (expect()).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tandem::fuzz {

/// Reads one input; each target defines it. It may throw Error, and nothing else.
void read(std::string_view input);

/// A folder of this process, removed at its end.
const std::filesystem::path& folder();
/// Writes the input into a file of that folder and returns its path.
std::filesystem::path put(std::string_view input, std::string_view name);
/// The seeds of all targets, tests/fuzz/corpus.
const std::filesystem::path& corpus();

/// Ends the process unless what the reader promises holds.
void expect(bool holds, const char* promise);

}  // namespace tandem::fuzz
