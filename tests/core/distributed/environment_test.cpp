#include "engine/distributed/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/util/error.hpp"
#include "tests/support/throws_error.hpp"

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::string error_of(const Variables& variables) {
  return error_text([&] { (void)parse_environment(variables); });
}

TEST(Environment, NothingIsOneProcess) {
  const Environment e = parse_environment({{"PATH", "/bin"}});
  EXPECT_EQ(e.rank, 0);
  EXPECT_EQ(e.world, 1);
  EXPECT_EQ(e.local_world, 1);
}

TEST(Environment, Torchrun) {
  const Environment e = parse_environment({{"RANK", "5"},
                                           {"WORLD_SIZE", "8"},
                                           {"LOCAL_RANK", "1"},
                                           {"LOCAL_WORLD_SIZE", "4"},
                                           {"MASTER_ADDR", "node1"},
                                           {"MASTER_PORT", "1234"},
                                           {"TORCHELASTIC_RUN_ID", "abc"},
                                           {"TORCHELASTIC_RESTART_COUNT", "2"},
                                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                           {"SLURM_PROCID", "0"},
                                           {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(e.rank, 5);
  EXPECT_EQ(e.world, 8);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world, 4);
  EXPECT_EQ(e.master_address, "node1");
  EXPECT_TRUE(e.address_given);
  EXPECT_EQ(e.master_port, 1234);
  EXPECT_EQ(e.run_id, "abc");
  EXPECT_EQ(e.restart, 2);
  EXPECT_TRUE(e.agent_store);
}

TEST(Environment, DeepSpeedWithoutPython) {
  const Environment e = parse_environment({{"RANK", "1"},
                                           {"WORLD_SIZE", "2"},
                                           {"LOCAL_RANK", "1"},
                                           {"LOCAL_SIZE", "2"},
                                           {"CROSS_RANK", "0"},
                                           {"CROSS_SIZE", "1"},
                                           {"MASTER_ADDR", "127.0.0.1"},
                                           {"MASTER_PORT", "29500"}});
  EXPECT_EQ(e.local_world, 2);
  EXPECT_EQ(e.run_id, "none");
  EXPECT_FALSE(e.agent_store);
}

TEST(Environment, Slurm) {
  const Variables variables = {{"SLURM_PROCID", "6"},
                               {"SLURM_NTASKS", "9"},
                               {"SLURM_LOCALID", "2"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_TASKS_PER_NODE", "4(x2),1"},
                               {"SLURM_JOB_ID", "123456"},
                               {"SLURM_JOB_NODELIST", "gpu[003-005]"}};
  const Environment e = parse_environment(variables);
  EXPECT_EQ(e.rank, 6);
  EXPECT_EQ(e.world, 9);
  EXPECT_EQ(e.local_rank, 2);
  EXPECT_EQ(e.local_world, 4);
  EXPECT_EQ(e.master_address, "gpu003");
  EXPECT_FALSE(e.address_given);
  EXPECT_EQ(e.master_port, 23456);
  Variables with_port = variables;
  with_port["MASTER_PORT"] = "4000";
  EXPECT_EQ(parse_environment(with_port).master_port, 4000);
}

TEST(Environment, FirstHostOfSlurmsLists) {
  EXPECT_EQ(first_host("node7"), "node7");
  EXPECT_EQ(first_host("node7,node9"), "node7");
  EXPECT_EQ(first_host("node[003-010,12],other"), "node003");
  EXPECT_EQ(first_host("rack[2,4]n[08-09]-ib,x"), "rack2n08-ib");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("broken[1"), "broken1");
}

TEST(Environment, OpenMpi) {
  const Environment e = parse_environment({{"OMPI_COMM_WORLD_RANK", "3"},
                                           {"OMPI_COMM_WORLD_SIZE", "4"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(e.rank, 3);
  EXPECT_EQ(e.local_rank, 1);
  EXPECT_EQ(e.local_world, 2);
  EXPECT_EQ(e.master_address, "127.0.0.1");
}

TEST(Environment, SaysWhatIsWrong) {
  const Variables good = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1234"}};
  EXPECT_EQ(error_of(good), "no error");
  const auto with = [&](const char* name, const char* value) {
    Variables changed = good;
    changed[name] = value;
    return error_of(changed);
  };
  EXPECT_THAT(with("RANK", "2"), HasSubstr("rank 2 of 2 ranks"));
  EXPECT_THAT(with("RANK", "-1"), HasSubstr("RANK is \"-1\""));
  EXPECT_THAT(with("RANK", "one"), HasSubstr("RANK is \"one\""));
  EXPECT_THAT(with("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE is \"0\""));
  EXPECT_THAT(with("WORLD_SIZE", "99999999999"), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(with("MASTER_PORT", "70000"), HasSubstr("MASTER_PORT is \"70000\""));
  EXPECT_THAT(with("MASTER_PORT", ""), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(with("LOCAL_WORLD_SIZE", "3"), HasSubstr("3 ranks on this host of 2"));
  EXPECT_THAT(with("LOCAL_RANK", "2"), HasSubstr("local rank 2 of 2"));
  EXPECT_THAT(error_of({{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}}), HasSubstr("SLURM_NTASKS is not"));
  EXPECT_THAT(error_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), HasSubstr("OMPI_COMM_WORLD_RANK is not"));
}

TEST(Environment, RanksAreBounded) {
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2147483647"}, {"MASTER_PORT", "1"}}),
              HasSubstr("WORLD_SIZE is \"2147483647\"; it takes a whole number from 1 to 65536"));
  EXPECT_THAT(error_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "70000"}}),
              HasSubstr("SLURM_NTASKS"));
}

}  // namespace
}  // namespace tandem
