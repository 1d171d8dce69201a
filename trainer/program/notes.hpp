// trainer/program/notes.hpp — prints notes about input files that are not errors.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace tandem {

/// "note: <text>" on stderr for each, in one line.
void print_notes(std::span<const std::string> notes);

/// The same about what a name stands for; nothing where it is a path.
void print_resolved(const std::string& name, const std::filesystem::path& path);

}  // namespace tandem
