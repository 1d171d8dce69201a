#include "tests/actors/collectives/contract/backend_world.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "runtime/io/net.hpp"
#include "runtime/util/check.hpp"

namespace tandem::test {

const char* name_of(Home home) {
  constexpr const char* kNames[] = {"own memory", "allocated memory", "mixed memory", "the device",
                                    "the file"};
  return kNames[static_cast<std::size_t>(home)];
}

const char* sentence_of(Promise promise) {
  constexpr const char* kSentences[] = {
      "a rank that aborts ends every rank's operations",
      "a rank that leaves ends the others' operations",
      "ranks at different operations of one size end with an error",
      "an error says why an operation cannot end, and which",
      "neighbouring ranks can be added first",
      "an accumulator may have the type of the block",
      "operands have any number of bytes",
  };
  return kSentences[static_cast<std::size_t>(promise)];
}

Operand ContractRank::operand(Home home, std::size_t bytes) {
  if (home == Home::kMixed) {
    home = number() == 1 ? Home::kOwn : Home::kAllocated;
  }
  const auto index = static_cast<std::size_t>(home);
  if (base_[index] == nullptr) {
    base_[index] = allocate(home, home_bytes_);
  }
  const std::size_t taken = (bytes / alignment() + 1) * alignment();
  TANDEM_CHECK_LE(used_[index] + taken, home_bytes_, "a program's operands fit");
  std::byte* const made = base_[index] + used_[index];
  used_[index] += taken;
  if (home == Home::kFile) {
    return {Place::kFile, made};
  }
  std::memset(made, static_cast<int>(kUnwritten), bytes + 1);
  return {home == Home::kDevice ? Place::kDevice : Place::kHost, made};
}

std::byte* ContractRank::allocate(Home home, std::size_t bytes) {
  return home == Home::kAllocated ? backend_.allocate(bytes) : own_.emplace_back(bytes).data();
}

Task<> run_to_its_end(ContractRank* rank, const Program* program, Ending* ending) {
  try {
    co_await (*program)(rank);
  } catch (const Error& error) {
    const auto* const lost = dynamic_cast<const PeerLost*>(&error);
    *ending = {error.what(), static_cast<int>(error.code()),
               lost != nullptr ? std::optional(lost->rank()) : std::nullopt};
  } catch (const std::exception& error) {
    *ending = {error.what(), 1, std::nullopt};
  }
}

const std::vector<Backend>& all_backends() {
  static const std::vector<Backend> kAll = [] {
    std::vector<Backend> all = loop_backends();
    for (std::vector<Backend> more : {thread_backends(), simulated_backends()}) {
      std::ranges::move(more, std::back_inserter(all));
    }
    return all;
  }();
  return kAll;
}

}  // namespace tandem::test
