// actors/collectives/secret.hpp — the secret that the processes of one run share, and proofs that a
// process knows it.
//
// A proof is an HMAC (libsodium's crypto_auth): it shows knowledge of the secret without revealing
// it. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tandem {

class Secret {
 public:
  static constexpr std::size_t kBytes = 32;
  using Proof = std::array<std::byte, kBytes>;
  // The least length of a secret's text. Shorter texts can be guessed.
  static constexpr std::size_t kLeastCharacters = 32;
  static constexpr std::size_t kMostCharacters = 1024;

  /// Returns the text of a new secret: 256 random bits as 64 hexadecimal digits.
  [[nodiscard]] static std::string random_text();
  /// Equal texts make equal secrets. If a user wrote the text, the caller checks its length.
  explicit Secret(std::string_view text);
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  /// Makes a proof, valid only for `purpose` (a word without a zero byte).
  [[nodiscard]] Proof prove(std::string_view purpose, std::span<const std::byte> what) const;
  /// Checks a proof in constant time.
  [[nodiscard]] bool is_proof(const Proof& proof, std::string_view purpose,
                              std::span<const std::byte> what) const;
  /// Returns the proof as 64 hexadecimal digits: the text of another secret, or a name that others
  /// cannot guess.
  [[nodiscard]] std::string derive(std::string_view purpose, std::string_view what) const;

 private:
  std::array<unsigned char, kBytes> key_;
};

}  // namespace tandem
