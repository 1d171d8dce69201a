// examples/cifar10_tutorial.cpp — the same net in a plain loop, as PyTorch's CIFAR-10 tutorial has
// it: no engine.
//
//   cifar10_tutorial --data_dir cifar-10-batches-bin
#include <algorithm>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "engine/data/sampler.hpp"
#include "engine/tensors/compute_thread.hpp"
#include "engine/types/stopwatch.hpp"
#include "models/cifar/net.hpp"
#include "models/cifar/records.hpp"
#include "runtime/system/machine.hpp"
#include "runtime/util/one_line.hpp"
#include "trainer/cifar/accuracy.hpp"
#include "trainer/cifar/aten_net.hpp"
#include "trainer/cifar/report.hpp"
#include "trainer/cifar/tutorial_flags.hpp"
#include "trainer/program/program.hpp"
#include "trainer/program/reexec.hpp"

namespace tandem {
namespace {

constexpr std::int64_t kTestBatch = 100;

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
    for (auto at = order.begin(), end = at; at != order.end() && step < steps; ++number, at = end) {
      end = at + std::min<std::ptrdiff_t>(flags.batch_size, order.end() - at);
      const std::vector<std::int64_t> indices(at, end);
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
  const double images_per_s =
      static_cast<double>(train(flags, data.train, net)) / watch.elapsed_s();
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
  fmt::print("{:.0f} images/s\n", images_per_s);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::reexec_with_tuned_env();
  return tandem::guarded_main([&] {
    const auto flags = tandem::parse_tutorial_flags(argc, argv);
    return flags ? tandem::tutorial(*flags) : 0;
  });
}
