#include "trainer/report/run_report.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/storage/file.hpp"
#include "runtime/system/bounded_lines.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/json_writer.hpp"
#include "trainer/report/block_files.hpp"
#include "trainer/report/curve.hpp"
#include "trainer/report/page.hpp"
#include "trainer/report/trace_window.hpp"

namespace tandem {
namespace {

namespace dom = simdjson::dom;
namespace fs = std::filesystem;

constexpr std::size_t kMostVerdicts = 500;
constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 30;
constexpr std::uintmax_t kMostBytes = 4 << 20;  // of a file that comes along as it is

// The page names and places them; what a run does not have is left out.
constexpr std::array<std::string_view, 14> kStepFigures = {"loss",
                                                           "grad_norm",
                                                           "lr",
                                                           "tokens_per_s",
                                                           "step_time_s",
                                                           "exposed_optimizer_s",
                                                           "exposed_gather_s",
                                                           "exposed_reduce_s",
                                                           "exposed_data_s",
                                                           "exposed_checkpoint_s",
                                                           "exposed_activation_s",
                                                           "exposed_disk_s",
                                                           "peak_host_bytes",
                                                           "peak_device_bytes"};

/// NaN and infinities are strings in our files.
std::optional<double> figure(const dom::object& object, std::string_view key) {
  dom::element value;
  if (object[key].get(value) != simdjson::SUCCESS) {
    return std::nullopt;
  }
  double number = 0;
  if (value.get(number) == simdjson::SUCCESS) {
    return number;
  }
  return value.is_string() ? std::optional(std::numeric_limits<double>::quiet_NaN()) : std::nullopt;
}

/// The reason for which open_ordinary_file() failed.
std::string why_not_ordinary(int error) {
  return error == ELOOP    ? "it is a link"
         : error == EINVAL ? "it is no ordinary file"
                           : std::strerror(error);
}

struct UnusualStep {
  std::int64_t step = 0;
  std::string what;
};

struct Metrics {
  std::map<std::string_view, Curve> curves;
  std::vector<UnusualStep> verdicts;  // those that are not "commit"
  std::int64_t steps = 0;
  std::int64_t last_step = 0;
  std::int64_t speculated = 0;
  std::int64_t unusual = 0;  // verdicts, with those that did not fit
  std::int64_t not_finite = 0;
  std::int64_t unread = 0;  // lines that are no object with a step
};

constexpr std::int64_t kMostExact = std::int64_t{1} << 53;  // a page's integers are exact below

/// The lines of a run's file, which may be a stranger's.
BoundedLines lines_of(const fs::path& path) {
  OwnedDescriptor file = open_ordinary_file(path.string());
  if (file.get() < 0) {
    throw user_error("report", "cannot read {}: {}; give the --output_dir of a run", path.string(),
                     why_not_ordinary(errno));
  }
  return BoundedLines(std::move(file));
}

std::size_t line_count(const fs::path& path) {
  BoundedLines lines = lines_of(path);
  std::size_t count = 0;
  while (lines.next()) {
    ++count;
  }
  return count;
}

void add_step(Metrics& metrics, std::int64_t step, const dom::object& object, std::size_t lines) {
  ++metrics.steps;
  metrics.last_step = std::max(metrics.last_step, step);
  for (const std::string_view name : kStepFigures) {
    if (const std::optional<double> value = figure(object, name)) {
      metrics.curves.try_emplace(name, lines).first->second.add(step, *value);
      metrics.not_finite += std::isfinite(*value) ? 0 : 1;
    }
  }
  bool speculated = false;
  if (object["speculated"].get(speculated) == simdjson::SUCCESS && speculated) {
    ++metrics.speculated;
  }
  std::string_view verdict;
  if (object["verdict"].get(verdict) == simdjson::SUCCESS && verdict != "commit") {
    if (++metrics.unusual <= static_cast<std::int64_t>(kMostVerdicts)) {
      metrics.verdicts.push_back({.step = step, .what = std::string(verdict)});
    }
  }
}

Metrics read_metrics(const fs::path& run) {
  const fs::path path = run / "metrics.jsonl";
  std::error_code absent;
  if (!fs::exists(fs::symlink_status(path, absent))) {
    throw user_error("report", "{} has no metrics.jsonl; give the --output_dir of a run",
                     run.string());
  }
  const std::size_t lines = line_count(path);
  Metrics metrics;
  dom::parser parser;
  BoundedLines file = lines_of(path);
  while (const auto next = file.next()) {
    const simdjson::padded_string line(*next);
    dom::object object;
    std::int64_t step = 0;
    if (parser.parse(line).get(object) != simdjson::SUCCESS ||
        object["step"].get(step) != simdjson::SUCCESS || step < 0 || step >= kMostExact) {
      metrics.unread += next->empty() ? 0 : 1;
    } else if (const std::optional<double> loss = figure(object, "eval_loss")) {
      metrics.curves.try_emplace("eval_loss", lines).first->second.add(step, *loss);
    } else {
      add_step(metrics, step, object, lines);
    }
  }
  metrics.unread += static_cast<std::int64_t>(file.left_out());
  if (metrics.steps == 0) {
    throw user_error(
        "report", "{} has no step{}; let the run take one first", path.string(),
        metrics.unread == 0
            ? ""
            : fmt::format(", and {} lines that are no step from 0 to 2^53", metrics.unread));
  }
  return metrics;
}

void write_metrics(JsonWriter& json, Metrics& metrics) {
  std::size_t per_bucket = 1;
  json.field("steps", metrics.steps).field("last_step", metrics.last_step);
  json.field("speculated", metrics.speculated).field("unusual", metrics.unusual);
  json.field("not_finite", metrics.not_finite).field("unread_lines", metrics.unread);
  json.key("verdicts").begin_array();
  for (const UnusualStep& verdict : metrics.verdicts) {
    json.begin_object().field("step", verdict.step).field("what", verdict.what).end_object();
  }
  json.end_array().key("curves").begin_object();
  for (auto& [name, curve] : metrics.curves) {
    per_bucket = std::max(per_bucket, curve.per_bucket());
    json.key(name);
    curve.write(json);
  }
  json.end_object().field("per_bucket", per_bucket);
}

/// A file that is absent or damaged costs its part of the page alone.
std::string readable(const fs::path& path, std::vector<std::string>& absent) {
  const FileHandle file(open_ordinary_file(path.string()).release());
  const std::string name = path.filename().string();
  if (!file.is_open()) {
    absent.push_back(errno == ENOENT ? name
                                     : fmt::format("{} ({})", name, why_not_ordinary(errno)));
    return {};
  }
  std::string text(kMostBytes + 1, 0);
  std::size_t got = 0;
  for (ssize_t some = 0; got < text.size() &&
                         (some = ::read(file.get(), text.data() + got, text.size() - got)) > 0;) {
    got += static_cast<std::size_t>(some);
  }
  if (got > kMostBytes) {
    absent.push_back(name + " (larger than 4 MiB)");
    return {};
  }
  text.resize(got);
  return text;
}

void write_json_file(JsonWriter& json, const char* key, const fs::path& path,
                     std::vector<std::string>& absent) {
  const std::string text = readable(path, absent);
  dom::parser parser;
  dom::element content;
  json.key(key);
  if (text.empty()) {
    json.value(nullptr);
  } else if (parser.parse(text).get(content) == simdjson::SUCCESS && content.is_object()) {
    json.raw(simdjson::minify(content));
  } else {
    absent.push_back(path.filename().string() + " (damaged)");
    json.value(nullptr);
  }
}

void write_lines_file(JsonWriter& json, const char* key, const fs::path& path,
                      std::vector<std::string>& absent) {
  const std::string text = readable(path, absent);
  json.key(key).begin_array();
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    json.value(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  json.end_array();
}

/// Names that a running run removes meanwhile count nothing.
std::uintmax_t bytes_in(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  std::vector<std::string> names;
  (void)reach::list(folder, names);
  for (const std::string& name : names) {
    struct stat found{};
    if (reach::status(folder / name, found) == 0) {
      bytes += S_ISDIR(found.st_mode)   ? bytes_in(folder / name)
               : S_ISREG(found.st_mode) ? static_cast<std::uintmax_t>(found.st_size)
                                        : 0;
    }
  }
  return bytes;
}

/// A manifest is written last, and has a block about slices if the others lie elsewhere.
bool is_whole(const fs::path& checkpoint) {
  std::error_code absent;
  const fs::path path = checkpoint / "manifest.json";
  if (!fs::exists(path, absent)) {
    return false;
  }
  try {
    dom::parser parser;
    const dom::element manifest =
        parser.parse(simdjson::padded_string(read_file(path, "report", kMostManifestBytes)));
    return manifest["slices"].error() != simdjson::SUCCESS;
  } catch (const std::exception&) {
    return false;
  }
}

void write_checkpoints(JsonWriter& json, const fs::path& folder) {
  std::vector<fs::path> found;
  std::vector<std::string> names;
  (void)reach::list(folder, names);
  for (const std::string& name : names) {
    if (name.starts_with("step-")) {
      found.push_back(folder / name);
    }
  }
  std::ranges::sort(found);
  json.key("checkpoints").begin_array();
  for (const fs::path& path : found) {
    const std::string name = path.filename().string();
    json.begin_object().field("name", name).field("bytes", bytes_in(path));
    json.field("step", std::strtoll(name.c_str() + 5, nullptr, 10));
    json.field("whole", is_whole(path)).end_object();
  }
  json.end_array();
}

void write_trace(JsonWriter& json, const fs::path& path, std::vector<std::string>& absent) {
  json.key("trace");
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) {
    absent.emplace_back(fs::is_symlink(path, error) ? "trace.json.gz (it is a link)"
                                                    : "trace.json.gz (--trace writes it)");
    json.value(nullptr);
    return;
  }
  JsonWriter window;
  try {
    write_trace_window(window, path);
    json.raw(window.text());
  } catch (const Error& error_of_part) {
    absent.push_back(fmt::format("trace.json.gz ({})", error_of_part.what()));
    json.value(nullptr);
  }
}

void write_run(JsonWriter& json, const fs::path& run) {
  Metrics metrics = read_metrics(run);
  std::vector<std::string> absent;
  json.begin_object().field("name", run.string());
  write_metrics(json, metrics);
  write_json_file(json, "summary", run / "summary.json", absent);
  write_json_file(json, "memory", run / "memory_plan.json", absent);
  write_json_file(json, "config", run / "resolved_config.json", absent);
  std::vector<std::string> not_asked_for;  // most runs have no such blocks: their panels say it
  write_json_file(json, "comms", run / kCommsFile, not_asked_for);
  write_json_file(json, "flops", run / kFlopsFile, not_asked_for);
  write_lines_file(json, "keys", run / "config_keys.txt", absent);
  write_lines_file(json, "notes", run / "notes.txt", absent);
  write_checkpoints(json, run / "checkpoints");
  write_trace(json, run / "trace.json.gz", absent);
  json.field("absent", absent).end_object();
}

/// JSON that can stand in a script element: outside of strings it has no '<', and within them an
/// escape is the same character.
std::string for_script_element(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string report_page(const std::vector<fs::path>& runs) {
  JsonWriter json;
  json.begin_object().key("runs").begin_array();
  for (const fs::path& run : runs) {
    write_run(json, run);
  }
  json.end_array().end_object();
  const std::size_t mark = kReportPage.find(kReportDataMark);
  return fmt::format("{}{}{}", kReportPage.substr(0, mark), for_script_element(json.text()),
                     kReportPage.substr(mark + kReportDataMark.size()));
}

void write_report(const std::vector<fs::path>& runs, const fs::path& output) {
  write_file(output, "report", report_page(runs));
}

}  // namespace tandem
