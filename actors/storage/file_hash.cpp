#include "actors/storage/file_hash.hpp"

#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "actors/storage/content_hash.hpp"
#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

}  // namespace

std::string content_hash_of(const std::filesystem::path& path, std::string_view where) {
  const OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ContentHasher hasher;
  std::vector<std::byte> piece(kPieceBytes);
  for (;;) {
    const ::ssize_t got = file.get() < 0 ? -1 : ::read(file.get(), piece.data(), piece.size());
    if (got == 0) {
      return hasher.result().text();
    }
    if (got < 0 && errno != EINTR) {
      throw user_error(where, "cannot read {}: {}", path.string(),
                       std::generic_category().message(errno));
    }
    hasher.add(std::span(piece).first(got > 0 ? static_cast<std::size_t>(got) : 0));
  }
}

}  // namespace tandem
