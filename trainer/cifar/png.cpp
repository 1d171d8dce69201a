#include "trainer/cifar/png.hpp"

#include <array>
#include <cstddef>
#include <string>

#include <zlib.h>

#include "actors/storage/file.hpp"
#include "runtime/util/check.hpp"

namespace tandem {

namespace {

using Letter = std::array<std::uint8_t,
                          kLetterHeight>;  // rows from above, five dots each, the leftmost highest

constexpr std::array<Letter, 26> kLetters = {{
    {0b01110, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001},  // a
    {0b11110, 0b10001, 0b10001, 0b11110, 0b10001, 0b10001, 0b11110},  // b
    {0b01110, 0b10001, 0b10000, 0b10000, 0b10000, 0b10001, 0b01110},  // c
    {0b11110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b11110},  // d
    {0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b11111},  // e
    {0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b10000},  // f
    {0b01110, 0b10001, 0b10000, 0b10111, 0b10001, 0b10001, 0b01110},  // g
    {0b10001, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001},  // h
    {0b01110, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110},  // i
    {0b00111, 0b00010, 0b00010, 0b00010, 0b00010, 0b10010, 0b01100},  // j
    {0b10001, 0b10010, 0b10100, 0b11000, 0b10100, 0b10010, 0b10001},  // k
    {0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b11111},  // l
    {0b10001, 0b11011, 0b10101, 0b10101, 0b10001, 0b10001, 0b10001},  // m
    {0b10001, 0b11001, 0b10101, 0b10101, 0b10011, 0b10001, 0b10001},  // n
    {0b01110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110},  // o
    {0b11110, 0b10001, 0b10001, 0b11110, 0b10000, 0b10000, 0b10000},  // p
    {0b01110, 0b10001, 0b10001, 0b10001, 0b10101, 0b10010, 0b01101},  // q
    {0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001},  // r
    {0b01111, 0b10000, 0b10000, 0b01110, 0b00001, 0b00001, 0b11110},  // s
    {0b11111, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100},  // t
    {0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110},  // u
    {0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01010, 0b00100},  // v
    {0b10001, 0b10001, 0b10001, 0b10101, 0b10101, 0b11011, 0b10001},  // w
    {0b10001, 0b10001, 0b01010, 0b00100, 0b01010, 0b10001, 0b10001},  // x
    {0b10001, 0b10001, 0b01010, 0b00100, 0b00100, 0b00100, 0b00100},  // y
    {0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b10000, 0b11111},  // z
}};

void append_number(std::string& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift));
  }
}

/// Length, type, data, checksum of type and data.
void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_number(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out.append(type).append(data);
  const auto* checked = reinterpret_cast<const Bytef*>(out.data() + begin);
  append_number(
      out, static_cast<std::uint32_t>(crc32(0, checked, static_cast<uInt>(out.size() - begin))));
}

std::string compressed(const std::string& raw) {
  uLongf size = compressBound(static_cast<uLong>(raw.size()));
  std::string out(size, '\0');
  const int result =
      compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                reinterpret_cast<const Bytef*>(raw.data()), static_cast<uLong>(raw.size()), 6);
  TANDEM_CHECK(result == Z_OK, "the bound is enough for any input");
  out.resize(size);
  return out;
}

}  // namespace

Canvas::Canvas(int width, int height, Colour ground) : width_(width), height_(height) {
  pixels_.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      set(x, y, ground);
    }
  }
}

void Canvas::set(int x, int y, Colour colour) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) {
    return;
  }
  std::uint8_t* pixel =
      pixels_.data() + (static_cast<std::ptrdiff_t>(y) * width_ + x) * std::ptrdiff_t{3};
  pixel[0] = colour.red;
  pixel[1] = colour.green;
  pixel[2] = colour.blue;
}

void Canvas::write(int x, int y, std::string_view text, Colour colour) {
  for (const char c : text) {
    if (c >= 'a' && c <= 'z') {
      const Letter& letter = kLetters[static_cast<std::size_t>(c - 'a')];
      for (int row = 0; row < kLetterHeight; ++row) {
        for (int dot = 0; dot < 5; ++dot) {
          if ((letter[static_cast<std::size_t>(row)] >> (4 - dot) & 1) != 0) {
            set(x + dot, y + row, colour);
          }
        }
      }
    }
    x += kLetterWidth;
  }
}

void write_png(const std::filesystem::path& file, const Canvas& canvas) {
  std::string header;
  append_number(header, static_cast<std::uint32_t>(canvas.width()));
  append_number(header, static_cast<std::uint32_t>(canvas.height()));
  header.append({8, 2, 0, 0, 0});  // bits per sample, RGB, deflate, filters by row, not interlaced
  std::string rows;
  const std::size_t row_bytes = static_cast<std::size_t>(canvas.width()) * 3;
  for (std::size_t at = 0; at < canvas.pixels().size(); at += row_bytes) {
    rows.push_back(0);  // this row has no filter
    rows.append(reinterpret_cast<const char*>(canvas.pixels().data()) + at, row_bytes);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", compressed(rows));
  append_chunk(png, "IEND", "");
  write_file(file, "output", png);
}

}  // namespace tandem
