#include "models/cifar/records.hpp"

#include <algorithm>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "actors/storage/file.hpp"
#include "models/cifar/xz.hpp"
#include "runtime/system/user_cache.hpp"
#include "runtime/util/error.hpp"

namespace tandem {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhere = "dataset";
constexpr std::size_t kRecordBytes = 1 + kCifarPixels;
constexpr std::uint64_t kFileLimitBytes = 64 << 20;  // the original's are 31 MB
constexpr int kTrainFiles = 5;
constexpr std::size_t kClasses = kCifarClassNames.size();

void append(CifarImages& images, std::int64_t label, const std::uint8_t* pixels,
            std::string_view file) {
  if (label < 0 || label >= static_cast<std::int64_t>(kClasses)) {
    throw user_error(kWhere,
                     "record {} of {} has the label {}, and labels go from 0 to {}; get the file "
                     "anew (./tandem fetch dataset cifar10)",
                     images.size(), file, label, kClasses - 1);
  }
  images.labels.push_back(static_cast<std::uint8_t>(label));
  images.pixels.insert(images.pixels.end(), pixels, pixels + kCifarPixels);
}

CifarImages from_binary(std::string_view bytes, const std::string& file) {
  if (bytes.empty() || bytes.size() % kRecordBytes != 0) {
    throw user_error(kWhere,
                     "{} has {} bytes, which is not a number of whole records of {}; get the file "
                     "anew (./tandem fetch dataset cifar10)",
                     file, bytes.size(), kRecordBytes);
  }
  CifarImages images;
  images.pixels.reserve(bytes.size());
  const auto* record = reinterpret_cast<const std::uint8_t*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / kRecordBytes; ++i, record += kRecordBytes) {
    append(images, *record, record + 1, file);
  }
  return images;
}

/// The path of `name` in one of its spellings.
std::optional<fs::path> find_file(const fs::path& folder, const std::string& name) {
  for (const char* ending : {".bin", ".bin.xz"}) {
    fs::path file = folder / (name + ending);
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) {
      return file;
    }
  }
  return std::nullopt;
}

std::string train_name(int number) { return fmt::format("data_batch_{}", number); }

/// The folder itself or the archive's folder in it.
fs::path folder_of_batches(const fs::path& folder) {
  for (const fs::path& candidate : {folder, folder / "cifar-10-batches-bin"}) {
    if (find_file(candidate, train_name(1))) {
      return candidate;
    }
  }
  for (const fs::path& candidate : {folder, folder / "cifar-10-batches-py"}) {
    std::error_code ignored;
    if (fs::exists(candidate / train_name(1), ignored)) {
      throw user_error(kWhere,
                       "{} holds the Python archive of CIFAR-10, and the binary one is read; "
                       "./tandem fetch dataset cifar10 --from {} makes it of that",
                       candidate.string(), candidate.string());
    }
  }
  throw user_error(kWhere,
                   "{} holds no data_batch_1 (.bin or .bin.xz); name the folder of CIFAR-10, or "
                   "leave --data_dir out",
                   folder.string());
}

void append(CifarImages& all, CifarImages more) {
  all.pixels.insert(all.pixels.end(), more.pixels.begin(), more.pixels.end());
  all.labels.insert(all.labels.end(), more.labels.begin(), more.labels.end());
}

}  // namespace

CifarImages read_cifar_file(const fs::path& file) {
  const std::string bytes = read_file(file, kWhere, kFileLimitBytes);
  const std::string name = file.string();
  if (file.extension() == ".xz") {
    return from_binary(unpack_xz(bytes, name, kWhere, kFileLimitBytes), name);
  }
  return from_binary(bytes, name);
}

CifarData read_cifar(const fs::path& folder) {
  const fs::path batches = folder_of_batches(folder);
  const auto test = find_file(batches, "test_batch");
  if (!test) {
    throw user_error(kWhere,
                     "{} has train batches and no test_batch; get the data set anew (./tandem "
                     "fetch dataset cifar10)",
                     batches.string());
  }
  CifarData data;
  int files = 0;
  for (int number = 1; number <= kTrainFiles; ++number) {
    const auto file = find_file(batches, train_name(number));
    if (!file) {
      continue;
    }
    if (++files != number) {
      throw user_error(kWhere,
                       "{} has {} and no {}; get the data set anew (./tandem fetch dataset "
                       "cifar10)",
                       batches.string(), train_name(number), train_name(files));
    }
    append(data.train, read_cifar_file(*file));
  }
  data.test = read_cifar_file(*test);
  data.description = fmt::format("{}: {} train images, {} test images", batches.string(),
                                 data.train.size(), data.test.size());
  if (files < kTrainFiles) {
    data.description += fmt::format(" (train batches 1 to {} of {})", files, kTrainFiles);
  }
  return data;
}

fs::path cifar_cache_folder() { return user_cache_folder() / "cifar-10-batches-bin"; }

CifarData open_cifar(const std::string& data_dir) {
  if (!data_dir.empty()) {
    return read_cifar(data_dir);
  }
  std::error_code ignored;
  if (!user_cache_folder().empty() && fs::exists(cifar_cache_folder(), ignored)) {
    return read_cifar(cifar_cache_folder());
  }
  return generated_cifar();
}

}  // namespace tandem
