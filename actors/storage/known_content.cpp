#include "actors/storage/known_content.hpp"

#include <array>

namespace tandem {
namespace {

using namespace std::string_view_literals;

struct Beginning {
  std::string_view bytes;
  std::string_view means;
};

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
    Beginning{"<!DOCTYPE"sv, "is a web page, as a failed download leaves it; download it again"},
    Beginning{"<!doctype"sv, "is a web page, as a failed download leaves it; download it again"},
    Beginning{"<html"sv, "is a web page, as a failed download leaves it; download it again"},
    Beginning{"PK\x03\x04"sv,
              "is what torch.save() writes, or another archive; ./tandem convert DIR DST --to hf "
              "reads such weights"},
    Beginning{"\x80\x02"sv, "is a pickle; ./tandem convert DIR DST --to hf reads such weights"}};

}  // namespace

std::string_view known_content(std::string_view first) noexcept {
  for (const Beginning& beginning : kBeginnings) {
    if (first.starts_with(beginning.bytes)) {
      return beginning.means;
    }
  }
  return {};
}

}  // namespace tandem
