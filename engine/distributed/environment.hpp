// engine/distributed/environment.hpp — which rank of a run this process is, from a launcher's
// variables.
//
// Launchers are looked for in this order. Only the first one found counts, so that torchrun inside
// of a Slurm job works:
//
//   torchrun, ./tandem launch, deepspeed --no_python   RANK, WORLD_SIZE
//   Slurm                                              SLURM_PROCID
//   Open MPI                                           OMPI_COMM_WORLD_RANK
//   none                                               a run of one process
//
// Pure: any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace tandem {

using Variables = std::map<std::string, std::string, std::less<>>;

struct Environment {
  std::string_view source = "nothing";  // what it was read from
  int rank = 0;
  int world = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_world = 1;
  std::string master_address = "127.0.0.1";
  bool address_given = false;  // by MASTER_ADDR, not worked out
  int master_port = 29500;
  std::string run_id = "none";
  int restart = 0;           // how often an elastic launcher has started this run anew
  int first_world = 0;       // how many ranks it had before hosts were lost; 0: not said
  bool agent_store = false;  // the launcher listens at master_port itself
  std::string secret;        // TANDEM_RUN_SECRET; empty: see run_secret.hpp
  std::string secret_file;   // TANDEM_RUN_SECRET_FILE
  std::string interface;     // TANDEM_INTERFACE; empty: by MASTER_ADDR alone
};

/// Throws a user error for a value that is not a number, is out of range, or contradicts another.
[[nodiscard]] Environment parse_environment(const Variables& variables);
/// The variables of this process.
[[nodiscard]] Variables process_variables();
/// "node[003-010,12],other" -> "node003".
[[nodiscard]] std::string first_host(std::string_view slurm_nodes);

}  // namespace tandem
