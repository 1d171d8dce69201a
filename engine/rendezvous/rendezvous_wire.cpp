#include "engine/rendezvous/rendezvous_wire.hpp"

#include <cstring>
#include <string>

#include <sys/random.h>

#include "runtime/util/check.hpp"

namespace tandem::rendezvous {
namespace {

std::string_view purpose_of(Role role) {
  return role == Role::kServer ? "rendezvous server" : "rendezvous client";
}

std::string what_is_proven(std::string_view run, const Nonce& of_client, const Nonce& of_server) {
  std::string text;
  for (const Nonce& nonce : {of_client, of_server}) {
    text.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  }
  return text.append(reinterpret_cast<const char*>(&kVersion), sizeof(kVersion)).append(run);
}

}  // namespace

Secret::Proof prove(Role role, const Secret& secret, std::string_view run, const Nonce& of_client,
                    const Nonce& of_server) {
  const std::string text = what_is_proven(run, of_client, of_server);
  return secret.prove(purpose_of(role), std::as_bytes(std::span(text)));
}

bool is_proof(const Secret::Proof& proof, Role role, const Secret& secret, std::string_view run,
              const Nonce& of_client, const Nonce& of_server) {
  const std::string text = what_is_proven(run, of_client, of_server);
  return secret.is_proof(proof, purpose_of(role), std::as_bytes(std::span(text)));
}

Nonce random_nonce() {
  Nonce nonce{};
  TANDEM_CHECK(::getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()),
               "the kernel gives some bytes");
  return nonce;
}

}  // namespace tandem::rendezvous
