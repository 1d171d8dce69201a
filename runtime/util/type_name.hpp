// runtime/util/type_name.hpp — a type's name without its namespaces, as a NUL-terminated constant.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace tandem::detail {

template <class T>
constexpr std::string_view full_type_name() {
  // "... full_type_name() [T = tandem::Ping]" with clang, "[with T = tandem::Ping; ...]" with g++.
  constexpr std::string_view text = __PRETTY_FUNCTION__;
  constexpr std::size_t begin = text.find("T = ") + 4;
  constexpr std::size_t end = text.find_first_of(";]", begin);
  return text.substr(begin, end - begin);
}

template <class T>
constexpr std::string_view short_type_name() {
  std::string_view name = full_type_name<T>();
  const std::size_t arguments = name.find('<');
  const std::size_t colons = name.substr(0, arguments).rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

template <class T>
inline constexpr auto kTypeNameText = [] {
  constexpr std::string_view name = short_type_name<T>();
  std::array<char, name.size() + 1> text{};
  for (std::size_t i = 0; i < name.size(); ++i) {
    text[i] = name[i];
  }
  return text;
}();

template <class T>
inline constexpr const char* kTypeName = kTypeNameText<T>.data();

}  // namespace tandem::detail
