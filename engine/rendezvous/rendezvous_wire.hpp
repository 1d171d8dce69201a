// engine/rendezvous/rendezvous_wire.hpp — the messages of a rendezvous connection, and their
// limits.
//
// First both ends prove that they know the secret of the run: the client sends an Opening with a
// random nonce, the server an Answer with a nonce of its own and its proof, the client a Closing
// with its proof, the server one byte. A proof covers both nonces, so that it cannot be replayed,
// and the run's id and restart count. Then the client sends requests (Request, key, value) and the
// server replies (Reply, value), one at a time. Messages are plain structures: all ranks run on one
// kind of machine.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "actors/collectives/secret.hpp"

namespace tandem::rendezvous {

inline constexpr std::uint64_t kMagic = 0x74616e64656d7276;  // "tandemrv"
inline constexpr std::uint32_t kVersion = 2;
using Nonce = std::array<std::byte, 32>;

struct Opening {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t zero = 0;
  Nonce nonce{};
};
struct Answer {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t zero = 0;
  Nonce nonce{};
  Secret::Proof proof{};
};
struct Closing {
  Secret::Proof proof{};
};

enum class Question : std::uint32_t { kSet = 1, kCount, kGet };
struct Request {
  Question question = Question::kGet;
  std::uint32_t key_bytes = 0;
  std::uint64_t value_bytes = 0;
};
struct Reply {
  std::uint64_t is_there = 0;
  std::uint64_t value_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<Opening> &&
              std::has_unique_object_representations_v<Answer> &&
              std::has_unique_object_representations_v<Request> &&
              std::has_unique_object_representations_v<Reply>);

// Limits of connections that have not proven anything:
inline constexpr std::chrono::seconds kTimeToProve{5};
inline constexpr std::size_t kMostUnproven = 64;  // further ones push out the oldest
// Limits of the others:
inline constexpr std::chrono::milliseconds kLastAnswers{2000};  // when rank 0 gives up
inline constexpr std::size_t kMostKeyBytes = 512;
inline constexpr std::size_t kMostValueBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMostKeys = std::size_t{1} << 14;
inline constexpr std::size_t kMostStoredBytes = std::size_t{1} << 30;

enum class Role { kServer, kClient };
/// `run`: its id and restart count.
[[nodiscard]] Secret::Proof prove(Role role, const Secret& secret, std::string_view run,
                                  const Nonce& of_client, const Nonce& of_server);
[[nodiscard]] bool is_proof(const Secret::Proof& proof, Role role, const Secret& secret,
                            std::string_view run, const Nonce& of_client, const Nonce& of_server);
[[nodiscard]] Nonce random_nonce();

}  // namespace tandem::rendezvous
