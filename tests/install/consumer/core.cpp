// tandem::core from outside, without LibTorch: a DeepSpeed JSON is read, and its schedule is asked.
#include <cstdio>

#include <tandem/engine/config/config.hpp>
#include <tandem/engine/schedule/schedule.hpp>

int main() {
  const tandem::Config config = tandem::parse_config(
      R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
          "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001,
                        "warmup_num_steps": 4, "warmup_type": "linear"}}})",
      "the consumer's config", 2);
  const tandem::LrSchedule schedule(config.schedule, config.optimizer.rate());
  std::printf("rate of step 100: %g\n", schedule.lr_at(100));
  return config.batch.micro_batch_size == 4 && schedule.lr_at(100) == 0.001 ? 0 : 1;
}
