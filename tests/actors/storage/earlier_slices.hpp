// tests/actors/storage/earlier_slices.hpp — folders of slices as earlier versions wrote them: the
// manifest was called slices.json, had a format of its own, and its members were not in a block.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "actors/storage/manifest.hpp"
#include "tests/support/io_support.hpp"

namespace tandem::test {

inline std::string earlier_text(const Manifest& manifest) {
  constexpr std::string_view kBlock = ",\n  \"slices\": {";
  constexpr std::string_view kWhole = ", \"whole\": ";
  constexpr std::string_view kHash = ",\n  \"content_hash\": \"";
  const std::string text = manifest.json();
  const std::size_t files = text.find("  \"files\": [");
  const std::size_t block = text.find(kBlock, files);
  const std::size_t whole = text.find(kWhole, block);
  const std::size_t end = text.rfind(kHash);
  const auto in = [&](std::size_t from, std::size_t to) { return text.substr(from, to - from); };
  std::string about = "  " + in(block + kBlock.size(), whole) + ",\n";
  for (const char* member : {" \"disk\"", " \"hosts\""}) {
    about.insert(about.find(member), "\n ");
  }
  std::string head = in(0, files);
  head.replace(head.find("tandem checkpoint"), 17, "tandem slices");
  std::string earlier = head + about + in(files, block) +
                        ",\n  \"whole\": " + in(whole + kWhole.size(), end - 1) +
                        std::string(kHash);
  ContentHasher hasher;
  hasher.add(std::as_bytes(std::span(earlier)));
  return earlier + hasher.result().text() + "\"\n}\n";
}

/// Gives a folder of slices the form that an earlier version would have given it.
inline void make_earlier(const std::filesystem::path& folder) {
  const std::filesystem::path now = folder / kManifestName;
  std::ofstream(folder / kEarlierSlicesName) << earlier_text(Manifest::parse(get(now), now));
  std::filesystem::remove(now);
}

}  // namespace tandem::test
