// trainer/program/notes.hpp — prints notes about input files that are not errors.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace tandem {

/// Prints "note: <text>" on stderr for each, in one line.
void print_notes(std::span<const std::string> notes);

/// Prints such a note on the path for which a name stands; nothing if the name is a path.
void print_resolved(const std::string& name, const std::filesystem::path& path);

}  // namespace tandem
