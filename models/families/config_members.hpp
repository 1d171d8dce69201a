// models/families/config_members.hpp — the known members of a config.json and their effects: one
// list for each family, by which files are completed, checked and documented (docs/model_keys.md).
//
// Invariant: what Transformers obeys for a family is in its list. A member that no list has changes
// nothing in Transformers either, and is named in a note.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/io/hf_config.hpp"

namespace tandem {

struct Family;

enum class MemberUse : std::uint8_t {
  kUsed,      // `value`: what Transformers takes where it is absent; empty: it follows from others
  kAlias,     // another name of the member `value`
  kFixed,     // changes the result: refused unless it is `value` or null
  kHarmless,  // changes nothing that is computed here
};

struct ConfigMember {
  std::string_view key;
  MemberUse use;
  std::string_view value = {};  // JSON; of an alias a key
};

constexpr ConfigMember used(std::string_view key, std::string_view otherwise = {}) {
  return {key, MemberUse::kUsed, otherwise};
}
constexpr ConfigMember also(std::string_view key, std::string_view of) {
  return {key, MemberUse::kAlias, of};
}
constexpr ConfigMember fixed(std::string_view key, std::string_view at) {
  return {key, MemberUse::kFixed, at};
}
constexpr ConfigMember harmless(std::string_view key) { return {key, MemberUse::kHarmless}; }

/// One list out of what families share and what is a family's own, which comes first: of two
/// entries for a key the first one counts.
template <std::size_t kShared, std::size_t kOwn>
constexpr std::array<ConfigMember, kShared + kOwn> joined(
    const std::array<ConfigMember, kShared>& shared, const std::array<ConfigMember, kOwn>& own) {
  std::array<ConfigMember, kShared + kOwn> all{};
  for (std::size_t i = 0; i < kShared + kOwn; ++i) {
    all[i] = i < kOwn ? own[i] : shared[i - kOwn];
  }
  return all;
}

/// The members that every family has.
std::span<const ConfigMember> common_members();

/// `json` with the values that Transformers takes for what is absent, or null without a meaning.
/// Adds to `notes` the sizes that were left out and the members that nothing reads. Throws
/// user_error for a member that asks for another way of computing. `json` must be an object.
std::string completed_config(std::string_view json, std::string_view file, const Family& family,
                             std::vector<std::string>& notes);

/// docs/model_keys.md, of the families given.
std::string model_keys_page(std::span<const Family* const> families);

}  // namespace tandem
