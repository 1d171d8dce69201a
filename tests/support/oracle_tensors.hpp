// tests/support/oracle_tensors.hpp — just enough of a safetensors reader to compare with the oracle
// files. The production reader lives two layers up and may not be used here.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace tandem::test {

class OracleTensors {
 public:
  explicit OracleTensors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    if (!file || length > (1U << 20)) {
      throw std::runtime_error("cannot read " + path);
    }
    header_.resize(length);
    file.read(header_.data(), static_cast<std::streamsize>(length));
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }

  /// The tensor's elements in row-major order, copied.
  template <class T>
  [[nodiscard]] std::vector<T> get(const std::string& name) const {
    const auto at = header_.find("\"" + name + "\":");
    const auto offsets = header_.find("\"data_offsets\":", at);
    if (at == std::string::npos || offsets == std::string::npos) {
      throw std::runtime_error("no tensor " + name);
    }
    const auto open = header_.find('[', offsets);
    const auto comma = header_.find(',', open);
    const std::size_t begin = std::stoull(header_.substr(open + 1, comma - open - 1));
    const std::size_t end = std::stoull(header_.substr(comma + 1));
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

 private:
  std::string header_;
  std::vector<char> data_;
};

}  // namespace tandem::test
