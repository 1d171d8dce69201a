#include "engine/metrics/flops_profile.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/util/json_writer.hpp"

namespace tandem {
namespace {

constexpr double kTera = 1e12;

double to_hundredths(double value) { return std::round(value * 100) / 100; }

/// "12.35 G", as DeepSpeed writes figures.
std::string number_text(double value) {
  struct Magnitude {
    double at_least, of;
    std::string_view unit;
  };
  constexpr std::array kMagnitudes = {Magnitude{1e12, 1e12, "T"}, Magnitude{1e9, 1e9, "G"},
                                      Magnitude{1e6, 1e6, "M"},   Magnitude{1e3, 1e3, "K"},
                                      Magnitude{1, 1, ""},        Magnitude{1e-3, 1e-3, "m"},
                                      Magnitude{0, 1e-6, "u"}};
  if (value == 0) {
    return "0 ";
  }
  const auto* found = std::ranges::find_if(
      kMagnitudes, [value](const Magnitude& magnitude) { return value >= magnitude.at_least; });
  return fmt::format("{:g} {}", to_hundredths(value / found->of), found->unit);
}
std::string macs_text(double macs) { return number_text(macs) + "MACs"; }
std::string rate_text(double rate) { return number_text(rate) + "FLOPS"; }
std::string seconds_text(double seconds) { return number_text(seconds) + "s"; }
std::string parameters_text(std::int64_t parameters) {
  std::string text = number_text(static_cast<double>(parameters));
  std::ranges::replace(text, 'G', 'B');
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

double rate_of(double flops, double seconds) { return seconds > 0 ? flops / seconds : 0; }

/// "37.5 %" of what the device can do.
std::string peak_text(const FlopsProfile& profile, double rate) {
  return profile.peak_tflops > 0
             ? fmt::format("{:.1f} %", rate / (profile.peak_tflops * kTera) * 100)
             : "not measured";
}

std::string percent(double part, double whole) {
  return fmt::format("{:g}%", whole > 0 ? to_hundredths(100 * part / whole) : 0);
}

std::string summary_text(const FlopsProfile& p, const FlopsProfilerConfig& config) {
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<70}  {:<8}\n", name, value);
  };
  const double forward = p.model.forward_flops;
  const double backward = config.recompute_fwd_factor > 0
                              ? (2 + config.recompute_fwd_factor) * forward
                              : p.model.backward_flops;
  const double factor = forward > 0 ? to_hundredths(backward / forward) : 0;
  const double both_s = p.phases.forward_s + p.phases.backward_s;
  const double all_s = both_s + p.phases.step_s;
  const double rate = rate_of(forward + backward, all_s);
  line("world size: ", std::to_string(p.world_size));
  line("data parallel size: ", std::to_string(p.data_ranks));
  line("model parallel size: ", "1");
  line("batch size per GPU: ", std::to_string(p.micro_batch));
  line("params per GPU: ", parameters_text(p.model.parameters));
  line("params of model = params per GPU * mp_size: ", parameters_text(p.model.parameters));
  line("fwd MACs per GPU: ", macs_text(p.model.forward_macs()));
  line("fwd flops per GPU: ", number_text(forward));
  line("fwd flops of model = fwd flops per GPU * mp_size: ", number_text(forward));
  line("fwd latency: ", seconds_text(p.phases.forward_s));
  line("fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ",
       rate_text(rate_of(forward, p.phases.forward_s)));
  line("bwd latency: ", seconds_text(p.phases.backward_s));
  line(fmt::format("bwd FLOPS per GPU = {:g} * fwd flops per GPU / bwd latency: ", factor),
       rate_text(rate_of(backward, p.phases.backward_s)));
  line(fmt::format("fwd+bwd FLOPS per GPU = {:g} * fwd flops per GPU / (fwd+bwd latency): ",
                   factor + 1),
       rate_text(rate_of(forward + backward, both_s)));
  line("step latency: ", seconds_text(p.phases.step_s));
  line("iter latency: ", seconds_text(all_s));
  line(fmt::format("FLOPS per GPU = {:g} * fwd flops per GPU / iter latency: ", factor + 1),
       rate_text(rate));
  line("share of the measured peak: ", peak_text(p, rate));
  line("samples/second: ",
       fmt::format("{:g}", to_hundredths(rate_of(static_cast<double>(p.sequences), all_s))));
  return text;
}

/// "block" of "block 12"; of a number alone "number".
std::string kind_of(const std::string& name) {
  const std::size_t end = name.find_last_not_of("0123456789 ");
  return end == std::string::npos ? "number" : name.substr(0, end + 1);
}

struct Kind {
  double macs = 0;
  double parameters = 0;
  double forward_s = 0;
  bool is_timed = false;
};

void collect(const ModuleProfile& module, std::size_t depth,
             std::vector<std::map<std::string, Kind>>& depths) {
  depths.resize(std::max(depths.size(), depth + 1));
  Kind& kind = depths[depth][kind_of(module.name)];
  kind.macs += module.forward_macs();
  kind.parameters += static_cast<double>(module.parameters);
  kind.forward_s += module.forward_s.value_or(0);
  kind.is_timed = kind.is_timed || module.forward_s;
  for (const ModuleProfile& part : module.parts) {
    collect(part, depth + 1, depths);
  }
}

/// {'block': '1.2 M', 'head': '300 K'}: the largest.
template <class Text>
std::string largest(const std::map<std::string, Kind>& kinds, double Kind::* figure,
                    std::int64_t most, Text text) {
  std::vector<std::pair<std::string, Kind>> sorted(kinds.begin(), kinds.end());
  std::ranges::stable_sort(sorted, [figure](const auto& a, const auto& b) {
    return a.second.*figure > b.second.*figure;
  });
  if (static_cast<std::int64_t>(sorted.size()) > most) {
    sorted.resize(static_cast<std::size_t>(most));
  }
  std::string all;
  for (const auto& [name, kind] : sorted) {
    all += fmt::format("{}'{}': '{}'", all.empty() ? "" : ", ", name, text(kind.*figure));
  }
  return "{" + all + "}";
}

std::string aggregated_text(const FlopsProfile& profile, const FlopsProfilerConfig& config) {
  std::vector<std::map<std::string, Kind>> depths;
  collect(profile.model, 0, depths);
  std::string text = fmt::format(
      "Top {} modules in terms of params, MACs or fwd latency at different model "
      "depths:\n",
      config.top_modules);
  for (std::size_t depth = 0; depth < depths.size(); ++depth) {
    if (config.module_depth >= 0 && depth > static_cast<std::size_t>(config.module_depth)) {
      break;
    }
    const auto& kinds = depths[depth];
    text += fmt::format("depth {}:\n", depth);
    text += fmt::format("    params      - {}\n",
                        largest(kinds, &Kind::parameters, config.top_modules, [](double value) {
                          return parameters_text(static_cast<std::int64_t>(value));
                        }));
    text += fmt::format("    MACs        - {}\n",
                        largest(kinds, &Kind::macs, config.top_modules, macs_text));
    if (std::ranges::any_of(kinds, [](const auto& kind) { return kind.second.is_timed; })) {
      text += fmt::format("    fwd latency - {}\n",
                          largest(kinds, &Kind::forward_s, config.top_modules, seconds_text));
    }
  }
  return text;
}

void append_tree(const FlopsProfile& profile, const ModuleProfile& module, std::size_t depth,
                 std::string& text) {
  const ModuleProfile& all = profile.model;
  const std::string indent(2 * depth, ' ');
  text += depth == 0 ? kind_of(module.name) + "("
                     : fmt::format("{}({}): {}(", indent, module.name, kind_of(module.name));
  std::string figures = fmt::format(
      "{} = {} Params, {} = {} MACs", parameters_text(module.parameters),
      percent(static_cast<double>(module.parameters), static_cast<double>(all.parameters)),
      macs_text(module.forward_macs()), percent(module.forward_flops, all.forward_flops));
  if (module.forward_s) {
    const double rate = rate_of(module.forward_flops, *module.forward_s);
    figures += fmt::format(", {} = {} latency, {}, {} of the peak", seconds_text(*module.forward_s),
                           percent(*module.forward_s, all.forward_s.value_or(0)), rate_text(rate),
                           peak_text(profile, rate));
  }
  if (module.parts.empty()) {
    text += figures + ")\n";
    return;
  }
  text += fmt::format("\n{}  {}\n", indent, figures);
  for (const ModuleProfile& part : module.parts) {
    append_tree(profile, part, depth + 1, text);
  }
  text += indent + ")\n";
}

void write_module(JsonWriter& json, const ModuleProfile& module) {
  json.begin_object();
  json.field("name", module.name).field("parameters", module.parameters);
  json.field("forward_flops", module.forward_flops);
  if (module.forward_s && module.backward_s) {
    json.field("backward_flops", module.backward_flops);
    json.field("forward_s", *module.forward_s).field("backward_s", *module.backward_s);
  }
  json.key("parts").begin_array();
  for (const ModuleProfile& part : module.parts) {
    write_module(json, part);
  }
  json.end_array().end_object();
}

}  // namespace

std::string flops_profile_text(const FlopsProfile& profile, const FlopsProfilerConfig& config) {
  std::string text =
      "\n-------------------------- DeepSpeed Flops Profiler --------------------------\n";
  text += fmt::format("Profile Summary at step {}:\n", profile.step);
  text +=
      "Notations:\n"
      "data parallel size (dp_size), model parallel size(mp_size),\n"
      "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
      "number of floating-point operations (flops), floating-point operations per second "
      "(FLOPS),\n"
      "fwd latency (forward propagation latency), bwd latency (backward propagation latency),\n"
      "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n\n";
  text += summary_text(profile, config);
  text +=
      "\n----------------------------- Aggregated Profile per GPU "
      "-----------------------------\n";
  text += aggregated_text(profile, config);
  if (config.detailed) {
    text +=
        "\n------------------------------ Detailed Profile per GPU "
        "------------------------------\n";
    text +=
        "Each module profile is listed after its name in the following order:\n"
        "params, percentage of total params, MACs, percentage of total MACs, fwd latency, "
        "percentage of\ntotal fwd latency, fwd FLOPS, share of the measured peak. Latencies are "
        "those of the segments,\nwhich are run as a whole.\n\n";
    append_tree(profile, profile.model, 0, text);
  }
  return text + "------------------------------------------------------------------------------\n";
}

std::string flops_profile_json(const FlopsProfile& p) {
  JsonWriter json(2);
  json.begin_object();
  json.field("step", p.step).field("world_size", p.world_size);
  json.field("micro_batch", p.micro_batch).field("sequences", p.sequences);
  json.field("peak_tflops", p.peak_tflops).field("step_flops", p.step_flops());
  json.field("forward_s", p.phases.forward_s).field("backward_s", p.phases.backward_s);
  json.field("allreduce_s", p.phases.allreduce_s).field("step_s", p.phases.step_s);
  json.key("model");
  write_module(json, p.model);
  json.end_object();
  return json.take() + "\n";
}

}  // namespace tandem
