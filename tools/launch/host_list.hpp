// tools/launch/host_list.hpp — which hosts, and which slots of each, a launch is on: DeepSpeed's
// hostfile, its --include and --exclude, and its file of variables. Pure but for the files read;
// throws a user error for what cannot be meant.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

struct HostSlots {
  std::string name;
  std::vector<int> slots;  // one rank each; ascending
};

/// Lines "NAME slots=N"; "#" begins a comment. The order is that of the ranks.
[[nodiscard]] std::vector<HostSlots> read_hostfile(const std::string& path);
/// "a:2,b:2"; a name alone has one slot.
[[nodiscard]] std::vector<HostSlots> parse_hosts(std::string_view text);
/// "NAME[:SLOT[,SLOT...]][@...]": what is left of `hosts`, which is never nothing. At most one of
/// the two is not empty.
[[nodiscard]] std::vector<HostSlots> choose_slots(const std::vector<HostSlots>& hosts,
                                                  std::string_view include,
                                                  std::string_view exclude);

using NamesAndValues = std::vector<std::pair<std::string, std::string>>;
/// Lines "NAME=VALUE" of `.deepspeed_env` (DS_ENV_FILE: another name) in the home folder, then in
/// this one; a later line wins.
[[nodiscard]] NamesAndValues read_deepspeed_env();
/// Variables of this process that ranks of every host get: those that DeepSpeed hands on (MLFLOW*,
/// NCCL*, PYTHON*, MV2*, UCX*), and TANDEM_*, OMP_* and GOMP_*.
[[nodiscard]] NamesAndValues variables_for_hosts();

}  // namespace tandem
