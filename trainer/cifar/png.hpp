// trainer/cifar/png.hpp — an RGB canvas with a small font, and its PNG file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace tandem {

struct Colour {
  std::uint8_t red = 0;
  std::uint8_t green = 0;
  std::uint8_t blue = 0;
};

class Canvas {
 public:
  Canvas(int width, int height, Colour ground);

  /// Sets a pixel; does nothing outside the canvas.
  void set(int x, int y, Colour colour);
  /// Writes letters a to z in 5 x 7 dots, 6 apart; any other character is a blank. (x, y): the
  /// first letter's upper left corner.
  void write(int x, int y, std::string_view text, Colour colour);

  [[nodiscard]] int width() const noexcept { return width_; }
  [[nodiscard]] int height() const noexcept { return height_; }
  /// [height, width, 3]
  [[nodiscard]] const std::vector<std::uint8_t>& pixels() const noexcept { return pixels_; }

 private:
  int width_;
  int height_;
  std::vector<std::uint8_t> pixels_;
};

inline constexpr int kLetterWidth = 6;
inline constexpr int kLetterHeight = 7;

/// Writes an 8-bit RGB file atomically. Throws Error naming the file and the system's reason.
void write_png(const std::filesystem::path& file, const Canvas& canvas);

}  // namespace tandem
