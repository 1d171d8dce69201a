// actors/storage/known_content.hpp — what a file is that is not what it should be, by its first
// bytes.
#pragma once

#include <string_view>

namespace tandem {

/// Bytes that are enough to tell.
inline constexpr std::size_t kTellingBytes = 64;

/// "is a pointer of Git LFS in the place of the file; fetch it: git lfs pull", as the end of a
/// sentence about a file that begins so; empty where nothing is known.
std::string_view known_content(std::string_view first) noexcept;

}  // namespace tandem
