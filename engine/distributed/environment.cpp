#include "engine/distributed/environment.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include <unistd.h>

#include "runtime/util/error.hpp"

namespace tandem {
namespace {

constexpr int kMost = std::numeric_limits<int>::max();
constexpr int kMostRanks = 1 << 16;  // far more than ever met; each costs a few bytes of every rank
// Ports worked out from a job's number lie below those that the system gives away by itself.
constexpr int kFirstPort = 20'000;
constexpr int kPorts = 10'000;

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  [[nodiscard]] bool has(std::string_view name) const { return !text(name).empty(); }
  [[nodiscard]] std::string text(std::string_view name) const {
    const auto found = variables_.find(name);
    return found != variables_.end() ? found->second : std::string();
  }

  [[nodiscard]] std::optional<int> number(std::string_view name, int least, int most) const {
    const std::string value = text(name);
    if (value.empty()) {
      return std::nullopt;
    }
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < least ||
        result > most) {
      throw user_error("environment", "{} is \"{}\"; it takes a whole number from {}{}", name,
                       value, least, most == kMost ? std::string() : fmt::format(" to {}", most));
    }
    return result;
  }
  /// The first of `names` that is set.
  [[nodiscard]] std::optional<int> first_number(std::initializer_list<std::string_view> names,
                                                int least) const {
    for (const std::string_view name : names) {
      if (const auto value = number(name, least, kMostRanks)) {
        return value;
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] int needed(std::string_view name, std::string_view because, int least) const {
    const auto value = number(name, least, kMostRanks);
    if (!value) {
      throw user_error("environment", "{} is set, {} is not; set both, or neither for one process",
                       because, name);
    }
    return *value;
  }

 private:
  const Variables& variables_;
};

void read_torchrun(const Reader& in, Environment& out) {
  out.source = "torchrun's variables";
  out.rank = in.needed("RANK", "WORLD_SIZE", 0);
  out.world = in.needed("WORLD_SIZE", "RANK", 1);
  out.local_rank = in.number("LOCAL_RANK", 0, kMost).value_or(out.rank);
  // deepspeed's launcher says LOCAL_SIZE.
  out.local_world = in.first_number({"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}, 1).value_or(out.world);
  if (out.world > 1 && !in.has("MASTER_PORT")) {
    throw user_error("environment",
                     "RANK is set, MASTER_PORT is not; set it to a free port, the same on all "
                     "ranks, or use ./tandem launch");
  }
}

/// Tasks on node `node` of "4(x2),1": two nodes with four, one with one.
std::optional<int> tasks_on(std::string_view list, int node) {
  while (!list.empty()) {
    int tasks = 0;
    int times = 1;
    auto [at, error] = std::from_chars(list.data(), list.data() + list.size(), tasks);
    if (error != std::errc()) {
      return std::nullopt;
    }
    list.remove_prefix(static_cast<std::size_t>(at - list.data()));
    if (list.starts_with("(x")) {
      const auto [close, bad] = std::from_chars(list.data() + 2, list.data() + list.size(), times);
      if (bad != std::errc() || times < 1) {
        return std::nullopt;
      }
      list.remove_prefix(std::min(list.size(), static_cast<std::size_t>(close - list.data()) + 1));
    }
    if (node < times) {
      return tasks;
    }
    node -= times;
    list.remove_prefix(list.starts_with(',') ? 1 : 0);
  }
  return std::nullopt;
}

void read_slurm(const Reader& in, Environment& out) {
  out.source = "Slurm's variables";
  out.rank = in.needed("SLURM_PROCID", "SLURM_NTASKS", 0);
  const auto of_step = in.number("SLURM_STEP_NUM_TASKS", 1, kMostRanks);
  out.world = of_step ? *of_step : in.needed("SLURM_NTASKS", "SLURM_PROCID", 1);
  out.local_rank = in.number("SLURM_LOCALID", 0, kMost).value_or(out.rank);
  const int node = in.number("SLURM_NODEID", 0, kMost).value_or(0);
  const auto here =
      tasks_on(in.has("SLURM_STEP_TASKS_PER_NODE") ? in.text("SLURM_STEP_TASKS_PER_NODE")
                                                   : in.text("SLURM_TASKS_PER_NODE"),
               node);
  out.local_world = here.value_or(out.world);
  const std::string host = first_host(in.text("SLURM_JOB_NODELIST"));
  if (!host.empty()) {
    out.master_address = host;
  }
  if (const auto job = in.number("SLURM_JOB_ID", 0, kMost)) {
    out.master_port = kFirstPort + *job % kPorts;
    out.run_id = fmt::format("slurm-{}-{}", *job, in.text("SLURM_STEP_ID"));
  }
}

void read_open_mpi(const Reader& in, Environment& out) {
  out.source = "Open MPI's variables";
  out.rank = in.needed("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", 0);
  out.world = in.needed("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", 1);
  out.local_rank = in.number("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMost).value_or(out.rank);
  out.local_world = in.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks).value_or(out.world);
}

void check(const Environment& e) {
  if (e.rank >= e.world) {
    throw user_error("environment", "rank {} of {} ranks ({}); ranks go from 0 to {}", e.rank,
                     e.world, e.source, e.world - 1);
  }
  if (e.local_world > e.world) {
    throw user_error("environment", "{} ranks on this host of {} in all ({}); correct the launch",
                     e.local_world, e.world, e.source);
  }
  if (e.local_rank >= e.local_world) {
    throw user_error("environment", "local rank {} of {} on this host ({}); correct the launch",
                     e.local_rank, e.local_world, e.source);
  }
}

}  // namespace

std::string first_host(std::string_view nodes) {
  std::string host;
  for (std::size_t at = 0; at < nodes.size() && nodes[at] != ','; ++at) {
    if (nodes[at] != '[') {
      host += nodes[at];
      continue;
    }
    const std::size_t close = std::min(nodes.find(']', at), nodes.size());
    const std::string_view inside = nodes.substr(at + 1, close - at - 1);
    host += inside.substr(0, inside.find_first_of(",-"));
    at = close;
  }
  return host;
}

Environment parse_environment(const Variables& variables) {
  const Reader in(variables);
  Environment out;
  if (in.has("RANK") || in.has("WORLD_SIZE")) {
    read_torchrun(in, out);
  } else if (in.has("SLURM_PROCID")) {
    read_slurm(in, out);
  } else if (in.has("OMPI_COMM_WORLD_RANK") || in.has("OMPI_COMM_WORLD_SIZE")) {
    read_open_mpi(in, out);
  }
  if (in.has("MASTER_ADDR")) {
    out.master_address = in.text("MASTER_ADDR");
    out.address_given = true;
  }
  out.master_port = in.number("MASTER_PORT", 1, 65'535).value_or(out.master_port);
  if (in.has("TORCHELASTIC_RUN_ID")) {
    out.run_id = in.text("TORCHELASTIC_RUN_ID");
  }
  out.restart = in.number("TORCHELASTIC_RESTART_COUNT", 0, kMost).value_or(0);
  out.first_world = in.number("TANDEM_FIRST_WORLD_SIZE", 1, 1 << 20).value_or(0);
  out.agent_store = in.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  out.secret = in.text("TANDEM_RUN_SECRET");
  out.secret_file = in.text("TANDEM_RUN_SECRET_FILE");
  out.interface = in.text("TANDEM_INTERFACE");
  check(out);
  return out;
}

Variables process_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace tandem
