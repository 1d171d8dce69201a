#include "actors/collectives/secret.hpp"

#include <algorithm>
#include <vector>

#include <sodium.h>

#include "runtime/util/check.hpp"

namespace tandem {
namespace {

static_assert(Secret::kBytes == crypto_auth_KEYBYTES && Secret::kBytes == crypto_auth_BYTES);

const unsigned char* raw(const void* bytes) { return static_cast<const unsigned char*>(bytes); }

std::string hex(const void* bytes, std::size_t count) {
  std::string text(2 * count + 1, 0);
  ::sodium_bin2hex(text.data(), text.size(), raw(bytes), count);
  text.pop_back();  // the terminating zero
  return text;
}

std::vector<unsigned char> message_of(std::string_view purpose, std::span<const std::byte> what) {
  std::vector<unsigned char> message(purpose.begin(), purpose.end());
  message.push_back(0);
  message.insert(message.end(), raw(what.data()), raw(what.data()) + what.size());
  return message;
}

}  // namespace

std::string Secret::random_text() {
  TANDEM_CHECK(::sodium_init() >= 0, "libsodium finds the kernel's random bytes");
  std::array<unsigned char, kBytes> bytes{};
  ::randombytes_buf(bytes.data(), bytes.size());
  std::string text = hex(bytes.data(), bytes.size());
  ::sodium_memzero(bytes.data(), bytes.size());
  return text;
}

Secret::Secret(std::string_view text) : key_{} {
  TANDEM_CHECK(::sodium_init() >= 0, "libsodium finds the kernel's random bytes");
  ::crypto_generichash(key_.data(), key_.size(), raw(text.data()), text.size(), nullptr, 0);
}

Secret::~Secret() { ::sodium_memzero(key_.data(), key_.size()); }

Secret::Proof Secret::prove(std::string_view purpose, std::span<const std::byte> what) const {
  const std::vector<unsigned char> message = message_of(purpose, what);
  Proof proof{};
  ::crypto_auth(reinterpret_cast<unsigned char*>(proof.data()), message.data(), message.size(),
                key_.data());
  return proof;
}

bool Secret::is_proof(const Proof& proof, std::string_view purpose,
                      std::span<const std::byte> what) const {
  const std::vector<unsigned char> message = message_of(purpose, what);
  return ::crypto_auth_verify(raw(proof.data()), message.data(), message.size(), key_.data()) == 0;
}

std::string Secret::derive(std::string_view purpose, std::string_view what) const {
  const Proof proof = prove(purpose, std::as_bytes(std::span(what)));
  return hex(proof.data(), proof.size());
}

}  // namespace tandem
