// A checkpoint's weights on their way into memory, beside plain reads of the same bytes that keep
// nothing. In turns, best of each, so that the ratios are of one run:
//   of_dd        one thread reads blocks of 1 MiB, as `dd of=/dev/null bs=1M` does; over the load
//   with its threads of_reading   as many threads read as load
// A load converts to fp32 into memory of its own, as a rank's masters are loaded. half/...: what
// one of two ranks loads. The files are made once in --folder=DIR (default: the system's for
// temporary files; removed at the end), --gb=N of them; they lie in the page cache then.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include "actors/memory/arena.hpp"
#include "actors/storage/file.hpp"
#include "bench/program.hpp"
#include "bench/torch_context.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/io/checkpoint.hpp"
#include "models/io/weights_writer.hpp"
#include "trainer/program/program.hpp"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTensorElements = std::int64_t{16} << 20;
constexpr std::int64_t kPieceElements = std::int64_t{4} << 20;  // as a rank loads

/// A folder with a checkpoint, as long as this lives.
class MadeCheckpoint {
 public:
  MadeCheckpoint(const fs::path& folder, double gb, TensorType type)
      : folder_(folder / fmt::format("load_bench.{}.{}", ::getpid(), static_cast<int>(type))) {
    fs::create_directories(folder_);
    const auto tensors = static_cast<std::int64_t>(
        gb * 1e9 /
        static_cast<double>(kTensorElements * static_cast<std::int64_t>(bytes_of(type))));
    std::vector<TensorPlan> plan;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(1, tensors); ++i) {
      plan.push_back({fmt::format("tensor.{:03}", i), type, {kTensorElements / 1024, 1024}});
    }
    std::vector<float> values(static_cast<std::size_t>(kPieceElements));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1e-3F * static_cast<float>(i % 1999) - 1;
    }
    WeightsWriter writer(folder_, plan);
    while (writer.current() != nullptr) {
      writer.append_f32(values);
    }
    writer.finish();
  }
  ~MadeCheckpoint() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  MadeCheckpoint(const MadeCheckpoint&) = delete;
  MadeCheckpoint& operator=(const MadeCheckpoint&) = delete;

  [[nodiscard]] const fs::path& folder() const noexcept { return folder_; }

 private:
  fs::path folder_;
};

struct Piece {
  const SafetensorsFile* file;
  const TensorInfo* tensor;
  std::int64_t begin;
  std::int64_t end;
  std::int64_t at;  // in the memory that is loaded into
};

/// The part [rank, rank + 1) / ranks of each tensor.
std::vector<Piece> pieces_of(const Checkpoint& checkpoint, std::int64_t ranks, std::int64_t rank) {
  std::vector<Piece> pieces;
  std::int64_t at = 0;
  for (const SafetensorsFile& file : checkpoint.files()) {
    for (const TensorInfo& tensor : file.tensors()) {
      const std::int64_t last = tensor.numel() * (rank + 1) / ranks;
      for (std::int64_t begin = tensor.numel() * rank / ranks; begin < last;
           begin += kPieceElements) {
        const std::int64_t end = std::min(last, begin + kPieceElements);
        pieces.push_back({&file, &tensor, begin, end, at});
        at += end - begin;
      }
    }
  }
  return pieces;
}

/// Seconds until `threads` threads have done work(piece) with all of them.
template <class Work>
double on_threads(int threads, const std::vector<Piece>& pieces, Work work) {
  const Stopwatch watch;
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> team;
  for (int t = 0; t < threads; ++t) {
    team.emplace_back([&] {
      for (std::size_t i = next++; i < pieces.size(); i = next++) {
        work(pieces[i]);
      }
    });
  }
  team.clear();
  return watch.elapsed_s();
}

void run_load(benchmark::State& state, const fs::path& folder, int threads, std::int64_t ranks) {
  const Checkpoint checkpoint = Checkpoint::open(folder);
  const std::vector<Piece> pieces = pieces_of(checkpoint, ranks, ranks - 1);
  HostBuffer weights(static_cast<std::size_t>(pieces.back().at + kPieceElements) * sizeof(float));
  weights.touch();
  auto* const out = reinterpret_cast<float*>(weights.data());
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += static_cast<std::size_t>(piece.end - piece.begin) * bytes_of(piece.tensor->type);
  }
  const auto read = [](const Piece& piece) {
    constexpr std::size_t kBlock = std::size_t{1} << 20;
    thread_local std::vector<std::byte> block(kBlock);
    static thread_local std::string opened;
    thread_local FileHandle file;
    if (opened != piece.file->path()) {
      opened = piece.file->path();
      file = FileHandle::open_read(opened, "bench");
    }
    const std::size_t size = bytes_of(piece.tensor->type);
    const std::uint64_t last =
        piece.tensor->begin_byte + static_cast<std::uint64_t>(piece.end) * size;
    for (std::uint64_t at =
             piece.tensor->begin_byte + static_cast<std::uint64_t>(piece.begin) * size;
         at < last; at += kBlock) {
      read_exactly(file, at, std::span(block).first(std::min<std::uint64_t>(kBlock, last - at)),
                   opened, "bench");
    }
  };
  const auto load = [out](const Piece& piece) {
    piece.file->read_f32(*piece.tensor, piece.begin, piece.end, out + piece.at);
  };
  (void)on_threads(threads, pieces, read);  // into the page cache
  double dd_s = std::numeric_limits<double>::infinity();
  double read_s = dd_s;
  double load_s = dd_s;
  for (auto _ : state) {
    dd_s = std::min(dd_s, on_threads(1, pieces, read));
    read_s = std::min(read_s, on_threads(threads, pieces, read));
    const double seconds = on_threads(threads, pieces, load);
    load_s = std::min(load_s, seconds);
    state.SetIterationTime(seconds);
  }
  state.counters["of_dd"] = dd_s / load_s;
  state.counters["of_reading"] = read_s / load_s;
  state.counters["file_bytes_per_s"] = static_cast<double>(bytes) / load_s;
  state.counters["dd_bytes_per_s"] = static_cast<double>(bytes) / dd_s;
}

void register_all(const fs::path& folder, double gb) {
  for (const TensorType type : {TensorType::kBF16, TensorType::kF32}) {
    const auto made = std::make_shared<MadeCheckpoint>(folder, gb, type);
    for (const int threads : {1, 2}) {
      for (const std::int64_t ranks : {1, 2}) {
        benchmark::RegisterBenchmark(
            fmt::format("{}/{}/threads:{}", ranks == 1 ? "all" : "half", name_of(type), threads)
                .c_str(),
            [made, threads, ranks](benchmark::State& state) {
              run_load(state, made->folder(), threads, ranks);
            })
            ->Unit(benchmark::kMillisecond)
            ->UseManualTime()
            ->Iterations(5);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  return guarded_main([&] {
    bench::Suite suite(argc, argv,
                       "a folder of weights on its way into memory, beside plain reads");
    const std::string folder =
        suite.text("--folder", std::filesystem::temp_directory_path(), "where the files are made");
    const double gb = suite.real("--gb", 2, {.least = 0.001}, "size of the files");
    suite.begin();
    bench::add_torch_context();
    bench::register_all(folder, gb);
    const int code = suite.run();
    benchmark::ClearRegisteredBenchmarks();  // and with them the files
    return code;
  });
}
