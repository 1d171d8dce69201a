// actors/storage/known_content.hpp — recognises, by its first bytes, a file that is not of the
// expected kind.
#pragma once

#include <string_view>

namespace tandem {

/// The number of first bytes that recognition needs.
inline constexpr std::size_t kTellingBytes = 64;

/// Returns the end of a sentence about a file that begins with the bytes `first`, for example "is a
/// pointer of Git LFS in the place of the file; fetch it: git lfs pull"; empty if it is not
/// recognised.
std::string_view known_content(std::string_view first) noexcept;

}  // namespace tandem
