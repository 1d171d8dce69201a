#include "engine/types/sim_spec.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

struct Suffix {
  std::string_view text;
  double factor;
};
// The longer one first where one begins with another.
constexpr std::array kPrefixes = {Suffix{"Ki", 1024.0},       Suffix{"Mi", 1048576.0},
                                  Suffix{"Gi", 1073741824.0}, Suffix{"Ti", 1099511627776.0},
                                  Suffix{"k", 1e3},           Suffix{"K", 1e3},
                                  Suffix{"M", 1e6},           Suffix{"G", 1e9},
                                  Suffix{"T", 1e12},          Suffix{"P", 1e15}};
constexpr std::array kTimes = {Suffix{"s", 1.0}, Suffix{"ms", 1e-3}, Suffix{"us", 1e-6},
                               Suffix{"ns", 1e-9}, Suffix{"", 1.0}};
constexpr std::array<std::string_view, 4> kFlopUnits = {"", "FLOPS", "FLOP/s", "FLOPs"};
constexpr std::array<std::string_view, 3> kSpeedUnits = {"", "B", "B/s"};
constexpr std::array<std::string_view, 2> kByteUnits = {"", "B"};

enum class Kind : std::uint8_t { kFlops, kSpeed, kBytes, kTime };

struct Key {
  std::string_view name;
  double SimSpec::* value;
  Kind kind;
};
constexpr std::array kKeys = {Key{"compute", &SimSpec::compute_flops_per_s, Kind::kFlops},
                              Key{"h2d", &SimSpec::to_device_bytes_per_s, Kind::kSpeed},
                              Key{"d2h", &SimSpec::to_host_bytes_per_s, Kind::kSpeed},
                              Key{"hbm", &SimSpec::memory_bytes_per_s, Kind::kSpeed},
                              Key{"memory", &SimSpec::memory_bytes, Kind::kBytes},
                              Key{"latency", &SimSpec::latency_s, Kind::kTime}};

// Beyond these no step would end, or its times and bytes were no 64-bit numbers any more.
struct Range {
  double least;
  double most;
};
constexpr Range range_of(Kind kind) {
  return kind == Kind::kTime    ? Range{0, 60}
         : kind == Kind::kBytes ? Range{1, 1e18}
         : kind == Kind::kSpeed ? Range{1e3, 1e18}
                                : Range{1e6, 1e21};
}

bool is_unit(Kind kind, std::string_view text) {
  const auto among = [text](const auto& units) {
    for (const std::string_view unit : units) {
      if (unit == text) {
        return true;
      }
    }
    return false;
  };
  return kind == Kind::kFlops   ? among(kFlopUnits)
         : kind == Kind::kSpeed ? among(kSpeedUnits)
                                : among(kByteUnits);
}

std::optional<double> factor_of(Kind kind, std::string_view suffix) {
  if (kind == Kind::kTime) {
    for (const Suffix& time : kTimes) {
      if (suffix == time.text) {
        return time.factor;
      }
    }
    return std::nullopt;
  }
  for (const Suffix& prefix : kPrefixes) {
    if (suffix.starts_with(prefix.text) && is_unit(kind, suffix.substr(prefix.text.size()))) {
      return prefix.factor;
    }
  }
  return is_unit(kind, suffix) ? std::optional(1.0) : std::nullopt;
}

std::optional<double> number_of(Kind kind, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const std::optional<double> factor = factor_of(kind, suffix);
  const bool usable = error == std::errc() && std::isfinite(value) && factor.has_value() &&
                      (value > 0 || (value == 0 && kind == Kind::kTime));
  return usable ? std::optional(value * *factor) : std::nullopt;
}

void set(SimSpec& spec, std::string_view part) {
  const std::size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  for (const Key& key : kKeys) {
    if (key.name != name) {
      continue;
    }
    const std::optional<double> value = equals == std::string_view::npos
                                            ? std::nullopt
                                            : number_of(key.kind, part.substr(equals + 1));
    if (!value) {
      throw user_error("sim_spec", "\"{}\" is not a value above 0 with a unit; write it as {}",
                       part,
                       key.kind == Kind::kTime    ? "latency=10us"
                       : key.kind == Kind::kFlops ? "compute=2T"
                                                  : fmt::format("{}=50GB", name));
    }
    const auto [least, most] = range_of(key.kind);
    if (*value < least || *value > most) {
      throw user_error("sim_spec", "\"{}\" is {:g}; it must be from {:g} to {:g}", part, *value,
                       least, most);
    }
    spec.*key.value = *value;
    return;
  }
  throw user_error("sim_spec",
                   "\"{}\" names nothing of the simulated device; it has compute, h2d, d2h, hbm, "
                   "memory and latency, as in "
                   "compute=2T,h2d=50GB,d2h=50GB,hbm=3TB,memory=16GB,latency=10us",
                   part);
}

}  // namespace

SimSpec parse_sim_spec(std::string_view text) {
  SimSpec spec;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    set(spec, text.substr(0, comma));
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return spec;
}

std::string to_string(const SimSpec& spec) {
  return fmt::format("compute={},h2d={},d2h={},hbm={},memory={},latency={}",
                     spec.compute_flops_per_s, spec.to_device_bytes_per_s, spec.to_host_bytes_per_s,
                     spec.memory_bytes_per_s, spec.memory_bytes, spec.latency_s);
}

}  // namespace tandem
