#include "trainer/run_trace.hpp"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <simdjson.h>

#include "engine/config/config.hpp"
#include "engine/types/version.hpp"
#include "runtime/system/nonce.hpp"
#include "runtime/trace.hpp"
#include "runtime/trace_file.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/flags/flag_values.hpp"
#include "trainer/program/program.hpp"

namespace tandem {

namespace {

constexpr const char* kFile = "trace.json.gz";
// The loop does a little many times: its records are several times those of another thread.
constexpr std::size_t kRecordsOfLoop = std::size_t{1} << 18;

/// Named like what a killed run leaves, so that the next run removes it.
std::string part_of(const RunFlags& flags, int rank) {
  return fmt::format("{}/.{}.tmp-{}", flags.output_dir, kFile,
                     nonce_text(static_cast<std::uint64_t>(rank)));
}

/// `value` of each rank, exactly.
std::vector<std::int64_t> of_all_ranks(Engine& engine, std::int64_t value) {
  constexpr std::int64_t kUnit = std::int64_t{1} << 32;
  const auto world = static_cast<std::size_t>(engine.world_size());
  const auto rank = static_cast<std::size_t>(engine.rank());
  std::vector<double> halves(2 * world);
  halves[2 * rank] = static_cast<double>(value / kUnit);
  halves[2 * rank + 1] = static_cast<double>(value % kUnit);
  halves = engine.sum_over_ranks(std::move(halves));
  std::vector<std::int64_t> values(world);
  for (std::size_t r = 0; r < world; ++r) {
    values[r] = static_cast<std::int64_t>(halves[2 * r]) * kUnit +
                static_cast<std::int64_t>(halves[2 * r + 1]);
  }
  return values;
}

/// The window and the parts that the file of all ranks shows.
struct Shown {
  trace::Window window;
  bool cut = false;
  std::int64_t first_step = 0;  // that is whole; 0: none is
  std::int64_t last_step = 0;

  [[nodiscard]] bool empty() const noexcept { return window.begin_ns == 0; }
  [[nodiscard]] std::string text() const {
    if (first_step == 0) {
      const double ms = static_cast<double>(window.end_ns - window.begin_ns) * 1e-6;
      return fmt::format("the last {:.1f} ms kept, less than a step", ms);
    }
    return first_step == last_step ? fmt::format("step {} kept", first_step)
                                   : fmt::format("steps {}-{} kept", first_step, last_step);
  }
};

/// The window in which every rank has all that it recorded. The ranks' marks of a step lie close
/// together; the first of them begins the window, so that each rank's is in it.
Shown shown_by_all(Engine& engine) {
  const trace::Kept own = trace::kept();
  const bool cut = std::ranges::max(of_all_ranks(engine, own.dropped ? 1 : 0)) == 1;
  // Where nothing was cut, each rank has all of the steps: the first begins and the last ends them.
  const std::vector<std::int64_t> begins = of_all_ranks(engine, own.since_ns);
  const std::vector<std::int64_t> ends = of_all_ranks(engine, own.until_ns);
  const std::int64_t since = cut ? std::ranges::max(begins) : std::ranges::min(begins);
  const std::int64_t until = cut ? std::ranges::min(ends) : std::ranges::max(ends);
  Shown shown{.window = {since, until}, .cut = cut};
  const auto whole = std::ranges::find_if(
      own.steps, [since](const trace::StepMark& step) { return step.at_ns >= since; });
  const bool has_step = whole != own.steps.end();
  const std::vector<std::int64_t> firsts = of_all_ranks(engine, has_step ? whole->number : 0);
  const std::int64_t first = std::ranges::max(firsts);
  const auto mark = std::ranges::find(own.steps, first, &trace::StepMark::number);
  const std::int64_t begin =
      std::ranges::min(of_all_ranks(engine, mark != own.steps.end() ? mark->at_ns : 0));
  if (std::ranges::min(firsts) == 0 || begin == 0) {
    return shown;
  }
  shown.first_step = first;
  shown.last_step = own.steps.back().number;
  shown.window.begin_ns = cut ? begin : since;
  return shown;
}

std::string other_data(const RunFlags& flags, const std::string& model, const Engine& engine,
                       const Shown& shown) {
  JsonWriter json;
  json.begin_object().field("tandem", version()).field("model", model);
  json.field("ranks", engine.world_size()).field("device", flags.device);
  json.field("window", shown.text());
  json.field("first_step", shown.first_step).field("last_step", shown.last_step);
  json.field("clock", "CLOCK_MONOTONIC").field("begin_ns", shown.window.begin_ns);
  json.field("end_ns", shown.window.end_ns).key("flags").begin_object();
  for (const auto& [name, value] : flags.typed) {
    json.field(name, value);
  }
  json.end_object().key("config");
  simdjson::dom::parser parser;
  const std::string config = resolved_json(engine.config());
  json.raw(simdjson::minify(parser.parse(config).value()));
  return json.end_object().take();
}

/// Merges the parts of the ranks that wrote theirs; the file is worth having without the others'.
void merge(const RunFlags& flags, trace::ChromeFile file, const std::vector<std::int64_t>& wrote) {
  std::string missing;
  for (std::size_t rank = 1; rank < wrote.size(); ++rank) {
    if (wrote[rank] == 1) {
      file.parts.push_back(part_of(flags, static_cast<int>(rank)));
    } else {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
  }
  trace::write_chrome_json(flags.output_dir + "/" + kFile, file);
  std::error_code ignored;
  for (const std::string& part : file.parts) {
    std::filesystem::remove(part, ignored);
  }
  if (!missing.empty()) {
    throw failure(ExitCode::kFailure, "trace", "{} lacks rank {}, which could not write its part",
                  kFile, missing);
  }
}

}  // namespace

void require_traced_steps(const RunFlags& flags, std::int64_t done, std::int64_t total) {
  const TracedSteps steps = parse_traced_steps(flags.trace_steps);
  if (steps.first > total) {
    throw user_error("flags",
                     "--trace_steps is {} and the run ends with step {}; give earlier ones",
                     flags.trace_steps, total);
  }
  if (steps.first > 0 && steps.last <= done) {
    throw user_error("flags",
                     "--trace_steps is {} and the run goes on behind step {}; give later ones",
                     flags.trace_steps, done);
  }
}

void begin_trace(const RunFlags& flags) {
  if (!flags.traces()) {
    return;
  }
  trace::Options options{.records_of_caller = kRecordsOfLoop};
  if (const TracedSteps steps = parse_traced_steps(flags.trace_steps); steps.first > 0) {
    options.first_step = steps.first;
    options.last_step = steps.last;
  }
  trace::enable(options);
}

void end_trace() { trace::disable(); }

void write_run_trace(const RunFlags& flags, const std::string& model, Engine& engine,
                     MetricsWriter& metrics) {
  if (!flags.traces()) {
    return;
  }
  const Shown shown = shown_by_all(engine);
  if (shown.empty()) {
    metrics.note(fmt::format("trace    none of the steps {} was trained", flags.trace_steps));
    return;
  }
  if (shown.cut) {
    metrics.note(fmt::format("trace    {}: there was no room for what came before", shown.text()));
  }
  bool wrote = true;
  if (engine.rank() != 0) {
    try {
      trace::write_part(part_of(flags, engine.rank()), shown.window);
    } catch (const std::exception& error) {
      // The exit code is the first rank's, which still writes: launchers end all by one's.
      print_warning(error.what());
      wrote = false;
    }
  }
  const std::vector<std::int64_t> all = of_all_ranks(engine, wrote ? 1 : 0);
  if (engine.rank() == 0) {
    metrics.report(kFile, [&] {
      merge(flags, {.window = shown.window, .other_data = other_data(flags, model, engine, shown)},
            all);
    });
  }
}

}  // namespace tandem
