#include "trainer/cifar/tutorial_flags.hpp"

#include <CLI/CLI.hpp>

#include "runtime/util/json_writer.hpp"
#include "trainer/flags/flag_table.hpp"

namespace tandem {

std::optional<TutorialFlags> parse_tutorial_flags(int argc, const char* const* argv) {
  TutorialFlags f;
  CLI::App app("Trains the CIFAR-10 net in a plain loop, as PyTorch's tutorial does.",
               "cifar10_tutorial");
  FlagTable table(app);
  table.add({"",
             {{"-e,--epochs", flags::number(f.epochs).above_zero(), "Epochs, 0.5 or 1.5, too"},
              {"--batch_size", flags::number(f.batch_size).above_zero(), "Images per step"},
              {"--lr", flags::number(f.sgd.lr).above_zero(kMostRate), "Learning rate"},
              {"--momentum", flags::number(f.sgd.momentum).not_negative(kMostRate), "Momentum"},
              {"--steps", flags::number(f.steps).not_negative(),
               "Stop after N steps; 0: --epochs decides"},
              {"--log-interval,--log_interval", flags::number(f.log_interval).above_zero(),
               "Steps between loss lines"},
              {"--data_dir", flags::text(f.data_dir),
               "Folder with CIFAR-10; default: what `./tandem fetch dataset cifar10` got, else a "
               "generated set"},
              {"--output_dir", flags::text(f.output_dir),
               "Where losses.jsonl and predictions.png go; default: nowhere"},
              {"--init_weights", flags::text(f.init_weights),
               "safetensors file to start from; default: fresh weights"},
              {"--seed", flags::seed(f.seed), "Seed of weights and shuffle"},
              {"--shuffle,!--no-shuffle", flags::on(f.shuffle), "Shuffle every epoch"},
              {"--compute_threads", flags::number(f.compute_threads).not_negative(),
               "Threads of LibTorch; 0: all cores"}}});
  if (parse_command_line(app, argc, argv)) {
    return std::nullopt;
  }
  table.check();
  return f;
}

LossFile::LossFile(const std::string& folder) {
  if (!folder.empty()) {
    make_output_dir(folder);
    file_.emplace(folder + "/losses.jsonl", false);
  }
}

void LossFile::write(std::int64_t step, double loss) {
  if (file_) {
    JsonWriter json;
    json.begin_object().field("step", step).field("loss", loss).end_object();
    file_->append_line(json.text());
  }
}

}  // namespace tandem
