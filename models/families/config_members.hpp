// models/families/config_members.hpp — the known members of a config.json and their effects: each
// family has one list, which completes, checks and documents its files (docs/model_keys.md).
//
// Invariant: a family's list has every member that Transformers obeys for the family. A member in
// no list changes nothing in Transformers either; a note names it.
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
  kUsed,      // `value`: Transformers' default; empty: other members decide it
  kAlias,     // another name of the member `value`
  kFixed,     // changes the result: refused unless it is `value` or null
  kHarmless,  // changes nothing that is computed here
};

struct ConfigMember {
  std::string_view key;
  MemberUse use;
  std::string_view value = {};  // JSON; for an alias the other key
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

/// Joins a family's own members, which come first, and the shared ones. The first entry for a key
/// counts.
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

/// Returns `json`, an object, with Transformers' default for each member that is absent, or null if
/// null means nothing there. Adds notes on sizes that were left out and on members in no list.
/// Throws user_error for a member that asks for a computation which the models here do not have.
std::string completed_config(std::string_view json, std::string_view file, const Family& family,
                             std::vector<std::string>& notes);

/// Returns the text of docs/model_keys.md for these families.
std::string model_keys_page(std::span<const Family* const> families);

}  // namespace tandem
