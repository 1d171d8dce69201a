// runtime/util/enum_names.hpp — the names of an enum's values, written once: for flags, configs and
// messages.
//
//   template <> inline constexpr auto kEnumNames<Overlap> = std::array{
//       EnumName{Overlap::kOff, "off"}, EnumName{Overlap::kComm, "comm"}};
//   name_of(Overlap::kOff) == "off";  parse_enum<Overlap>("comm");  choices<Overlap>() == "off or
//   comm"
// Pure. C++17, for nvcc as well.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace tandem {

template <class E>
struct EnumName {
  E value;
  std::string_view name;
};
template <class E>
EnumName(E, const char*) -> EnumName<E>;

struct NoEnumNames {};
/// Specialised beside an enum, with all of its values.
template <class E>
inline constexpr auto kEnumNames = NoEnumNames{};

template <class E>
inline constexpr bool kHasEnumNames =
    !std::is_same_v<std::decay_t<decltype(kEnumNames<E>)>, NoEnumNames>;

template <class E, std::enable_if_t<kHasEnumNames<E>, int> = 0>
[[nodiscard]] constexpr std::string_view name_of(E value) noexcept {
  for (const auto& entry : kEnumNames<E>) {
    if (entry.value == value) {
      return entry.name;
    }
  }
  return "";
}

/// Returns the value of that name; nullopt for any other text.
template <class E>
[[nodiscard]] constexpr std::optional<E> parse_enum(std::string_view name) noexcept {
  for (const auto& entry : kEnumNames<E>) {
    if (entry.name == name) {
      return entry.value;
    }
  }
  return std::nullopt;
}

/// "off, comm, offload or full".
template <class E>
[[nodiscard]] std::string choices() {
  std::string text;
  const std::size_t count = kEnumNames<E>.size();
  for (std::size_t i = 0; i < count; ++i) {
    text += i == 0 ? "" : i + 1 == count ? " or " : ", ";
    text += kEnumNames<E>[i].name;
  }
  return text;
}

}  // namespace tandem
