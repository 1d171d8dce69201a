// examples/cifar10_tutorial.cpp — the same net in a plain loop, as PyTorch's CIFAR-10 tutorial has
// it: no engine.
//
//   cifar10_tutorial --data_dir cifar-10-batches-bin
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/data/sampler.hpp"
#include "engine/metrics/line_file.hpp"
#include "engine/tensors/compute_thread.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/json_writer.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/cifar/accuracy.hpp"
#include "trainer/cifar/aten_net.hpp"
#include "trainer/cifar/report.hpp"
#include "trainer/flags/run_flags.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"
#include "trainer/program/seed_flag.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kTestBatch = 100;

struct TutorialFlags {
  std::string data_dir;
  std::string output_dir;
  std::string init_weights;
  double epochs = 2;
  std::int64_t batch_size = 4;
  std::int64_t steps = 0;
  std::int64_t log_interval = 2000;
  std::uint64_t seed = 0;
  bool shuffle = true;
  int compute_threads = 0;
  SgdOptions sgd;
};

std::optional<TutorialFlags> parse(int argc, const char* const* argv) {
  TutorialFlags f;
  CLI::App app("Trains the CIFAR-10 net in a plain loop, as PyTorch's tutorial does.",
               "cifar10_tutorial");
  app.add_option("-e,--epochs", f.epochs, "Epochs, 0.5 or 1.5, too")->capture_default_str();
  app.add_option("--batch_size", f.batch_size, "Images per step")->capture_default_str();
  app.add_option("--lr", f.sgd.lr, "Learning rate")->capture_default_str();
  app.add_option("--momentum", f.sgd.momentum, "Momentum")->capture_default_str();
  app.add_option("--steps", f.steps, "Stop after N steps; 0: --epochs decides")
      ->capture_default_str();
  app.add_option("--log-interval,--log_interval", f.log_interval, "Steps between loss lines")
      ->capture_default_str();
  app.add_option("--data_dir", f.data_dir,
                 "Folder with CIFAR-10; default: what `./tandem fetch dataset cifar10` got, else a "
                 "generated set");
  app.add_option("--output_dir", f.output_dir,
                 "Where losses.jsonl and predictions.png go; default: nowhere");
  app.add_option("--init_weights", f.init_weights,
                 "safetensors file to start from; default: fresh weights");
  add_seed(app, f.seed, "Seed of weights and shuffle");
  app.add_flag("--shuffle,!--no-shuffle", f.shuffle, "Shuffle every epoch");
  app.add_option("--compute_threads", f.compute_threads, "Threads of LibTorch; 0: all cores")
      ->capture_default_str();
  if (parse_command_line(app, argc, argv)) {
    return std::nullopt;
  }
  require_above_zero("--epochs", f.epochs);
  require_above_zero("--batch_size", static_cast<double>(f.batch_size));
  require_above_zero("--log-interval", static_cast<double>(f.log_interval));
  require_above_zero("--lr", f.sgd.lr, kMostRate);
  require_not_negative("--momentum", f.sgd.momentum, kMostRate);
  require_not_negative("--steps", static_cast<double>(f.steps));
  require_not_negative("--compute_threads", f.compute_threads);
  return f;
}

at::Tensor label_tensor(const CifarImages& images, const std::vector<std::int64_t>& indices) {
  at::Tensor labels = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::ranges::transform(indices, labels.data_ptr<std::int64_t>(), [&](std::int64_t index) {
    return images.labels[static_cast<std::size_t>(index)];
  });
  return labels;
}

/// One line of text per step, where an output folder was asked for.
class LossFile {
 public:
  explicit LossFile(const std::string& folder) {
    if (!folder.empty()) {
      make_output_dir(folder);
      file_.emplace(folder + "/losses.jsonl", false);
    }
  }
  void write(std::int64_t step, double loss) {
    if (file_) {
      JsonWriter json;
      json.begin_object().field("step", step).field("loss", loss).end_object();
      file_->append_line(json.text());
    }
  }

 private:
  std::optional<LineFile> file_;
};

/// Images trained on.
std::int64_t train(const TutorialFlags& flags, const CifarImages& images, AtenNet& net) {
  LossFile losses(flags.output_dir);
  std::int64_t step = 0;
  std::int64_t trained = 0;
  RunningLoss running(flags.log_interval);
  const std::int64_t epoch_steps = (images.size() + flags.batch_size - 1) / flags.batch_size;
  const std::int64_t steps =
      flags.steps > 0 ? flags.steps : steps_of_epochs(flags.epochs, epoch_steps);
  for (std::int64_t epoch = 0; step < steps; ++epoch) {
    const std::vector<std::int64_t> order = epoch_order(
        {.records = images.size(), .shuffle = flags.shuffle, .seed = flags.seed}, epoch);
    std::int64_t number = 0;
    for (auto at = order.begin(); at != order.end() && step < steps; ++number) {
      const auto end = at + std::min<std::ptrdiff_t>(flags.batch_size, order.end() - at);
      const std::vector<std::int64_t> indices(at, end);
      at = end;
      const float loss =
          net.step(image_tensor(images, indices), label_tensor(images, indices), flags.sgd);
      losses.write(++step, loss);
      trained += static_cast<std::int64_t>(indices.size());
      if (running.add(epoch, number, loss)) {
        fmt::print("{}\n", tutorial_loss_line(epoch, number, running.mean()));
        std::fflush(stdout);
      }
    }
  }
  return trained;
}

int tutorial(const TutorialFlags& flags) {
  const CifarData data = open_cifar(flags.data_dir);
  prepare_compute_thread(flags.compute_threads > 0 ? flags.compute_threads
                                                   : machine::usable_cpus());
  AtenNet net(flags.init_weights.empty() ? cifar_initial_weights(flags.seed)
                                         : cifar_weights_of(flags.init_weights));
  fmt::print("data     {}\n", one_line(data.description));
  const Stopwatch watch;
  const std::int64_t images = train(flags, data.train, net);
  const double seconds = watch.elapsed_s();
  fmt::print("Finished Training\n");

  const ImageLogits logits = [&](const at::Tensor& images) { return net.logits(images); };
  for (const std::string& line :
       tutorial_accuracy_lines(count_share(logits, data.test, {}, kTestBatch))) {
    fmt::print("{}\n", line);
  }
  if (!flags.output_dir.empty()) {
    write_predictions(std::filesystem::path(flags.output_dir) / "predictions.png", data.test,
                      logits);
  }
  fmt::print("{:.0f} images/s\n", static_cast<double>(images) / seconds);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse(argc, argv);
    return flags ? tandem::tutorial(*flags) : 0;
  });
}
