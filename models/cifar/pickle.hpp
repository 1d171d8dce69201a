// models/cifar/pickle.hpp — the files of CIFAR-10's Python archive (data_batch_1, ...): a pickled
// dict with a numpy array.
//
// A pickle is a program. This reader knows the few operations that build dicts, lists, texts,
// numbers and arrays of bytes (protocols 2 to 4, as Python 2 and 3 write them); everything else,
// and every name but numpy's array, is refused. Nothing is ever executed, and no value can make it
// use much more memory than the file has.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

struct PickledBatch {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<std::uint8_t> data;  // [rows, columns]
  std::vector<std::int64_t> labels;
};

/// Reads "data" and "labels" of the pickled dict in `bytes`. Throws user_error (`where`, `name`).
/// Any thread.
PickledBatch read_pickled_batch(std::string_view bytes, std::string_view name,
                                std::string_view where);

}  // namespace tandem
