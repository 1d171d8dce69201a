#include "actors/storage/known_content.hpp"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

using namespace std::string_view_literals;

struct Beginning {
  std::string_view bytes;
  std::string_view means;
};

constexpr std::string_view kPage =
    "is a web page, as a failed download leaves it; download it again";
constexpr std::string_view kFault =
    "is a server's error message, as a failed download leaves it; download it again";

constexpr std::array kBeginnings = {
    Beginning{"version https://git-lfs"sv,
              "is a pointer of Git LFS in the place of the file; fetch it: git lfs pull"},
    Beginning{"\xFF\xFE"sv, "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"},
    Beginning{"\xFE\xFF"sv, "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE"},
    Beginning{"\x28\xB5\x2F\xFD"sv, "is packed by zstd; unpack it: zstd -d FILE"},
    Beginning{"\x1F\x8B"sv, "is packed by gzip; unpack it: gunzip FILE"},
    Beginning{"\xFD\x37zXZ"sv, "is packed by xz; unpack it: unxz FILE"},
    Beginning{"GGUF"sv, "is a GGUF file of llama.cpp; take the model's safetensors"},
    Beginning{"PAR1"sv, "is a parquet file; give it that ending"},
    Beginning{"ARROW1"sv, "is an Arrow file; give it that ending"},
    Beginning{"PK\x03\x04"sv,
              "is what torch.save() writes, or another archive; ./tandem convert DIR DST --to hf "
              "reads such weights"},
    Beginning{"\x80\x02"sv, "is a pickle; ./tandem convert DIR DST --to hf reads such weights"}};

// A server's answers in the place of a file, in small letters; blanks may stand before them.
constexpr std::array kAnswers = {
    Beginning{"<!doctype"sv, kPage},
    Beginning{"<html"sv, kPage},
    Beginning{"<head"sv, kPage},
    Beginning{"<?xml"sv, "is XML, as a server answers a failed download; download it again"},
    Beginning{"<error"sv, kFault},
    Beginning{"{\"error\""sv, kFault}};

char small_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string_view known_content(std::string_view first) noexcept {
  for (const Beginning& beginning : kBeginnings) {
    if (first.starts_with(beginning.bytes)) {
      return beginning.means;
    }
  }
  first.remove_prefix(std::min(first.find_first_not_of(" \t\r\n"), first.size()));
  for (const Beginning& answer : kAnswers) {
    const std::string_view begin = first.substr(0, answer.bytes.size());
    if (std::ranges::equal(begin, answer.bytes, {}, small_letter)) {
      return answer.means;
    }
  }
  return {};
}

}  // namespace tandem
