#include "models/cifar/xz.hpp"

#include <algorithm>
#include <cstddef>

#include <lzma.h>

#include "runtime/util/error.hpp"

namespace tandem {

namespace {

constexpr std::uint64_t kDecoderMemoryBytes = 256 << 20;
constexpr std::size_t kFirstBytes = 1 << 20;

struct Decoder {
  lzma_stream stream = LZMA_STREAM_INIT;
  ~Decoder() { lzma_end(&stream); }
};

std::string_view reason_of(lzma_ret result) {
  switch (result) {
    case LZMA_FORMAT_ERROR:
      return "not an .xz file";
    case LZMA_MEMLIMIT_ERROR:
      return "it asks for too much memory";
    case LZMA_OPTIONS_ERROR:
      return "it uses a filter that is not known";
    case LZMA_BUF_ERROR:
      return "it is cut short";
    default:
      return "it is damaged";
  }
}

}  // namespace

std::string unpack_xz(std::string_view packed, std::string_view name, std::string_view where,
                      std::uint64_t limit_bytes) {
  const auto refuse = [&](std::string_view reason) {
    return user_error(where, "{} cannot be unpacked: {}; get the file anew", name, reason);
  };
  Decoder decoder;
  lzma_stream& stream = decoder.stream;
  if (lzma_stream_decoder(&stream, kDecoderMemoryBytes, LZMA_CONCATENATED) != LZMA_OK) {
    throw refuse("the decoder does not start");
  }
  std::string out(std::min<std::uint64_t>(kFirstBytes, limit_bytes), '\0');
  stream.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  for (;;) {
    stream.next_out = reinterpret_cast<std::uint8_t*>(out.data()) + stream.total_out;
    stream.avail_out = out.size() - stream.total_out;
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    if (result == LZMA_STREAM_END) {
      out.resize(stream.total_out);
      return out;
    }
    if (result != LZMA_OK && !(result == LZMA_BUF_ERROR && stream.avail_out == 0)) {
      throw refuse(reason_of(result));
    }
    if (stream.avail_out == 0) {
      if (out.size() >= limit_bytes) {
        throw refuse("it is larger than any file of this data set");
      }
      out.resize(std::min<std::uint64_t>(2 * out.size(), limit_bytes));
    }
  }
}

}  // namespace tandem
