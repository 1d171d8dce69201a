// `tandem schedule FILE.json --steps N`: the learning rate of optimizer steps 1..N.
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "engine/config/config.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "tools/cli/commands.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

int run_schedule(int argc, char** argv) {
  CLI::App app("The learning rate of optimizer steps 1..N, as one JSON array", "tandem schedule");
  std::string file;
  std::int64_t steps = 0;
  app.add_option("FILE", file, "a DeepSpeed JSON with a scheduler")->required();
  app.add_option("--steps", steps, "number of steps")
      ->required()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100'000'000}));
  if (const auto done = parse_command_line(app, argc, argv)) {
    return *done;
  }
  const Config config =
      load_config(file, ParseOptions{.batch_required = false,
                                     .fills = {{"scheduler.params.total_num_steps",
                                                fmt::format("{}", steps), "--steps"}}});
  if (config.schedule.type == ScheduleType::kConstant) {
    throw user_error("schedule", "{} has no scheduler; add one, e.g. type WarmupLR", file);
  }
  const LrSchedule schedule(config.schedule, config.optimizer.rate());
  JsonWriter json;
  json.begin_array();
  for (std::int64_t step = 1; step <= steps; ++step) {
    json.value(schedule.lr_at(step));
  }
  json.end_array();
  fmt::print("{}\n", json.text());
  return 0;
}

}  // namespace tandem
