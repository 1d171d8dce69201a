#include "runtime/system/topology.hpp"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/io_support.hpp"

namespace tandem {
namespace {

// The order is that of the GPUs that a process may use, which need not be the bus's.
TEST(CpuTopology, AnAcceleratorIsNearTheNodeOfItsAddress) {
  const test::TempDir devices;
  for (const auto& [address, node] : {std::pair("0000:3b:00.0", "0\n"), {"0001:86:00.0", "1\n"}}) {
    std::filesystem::create_directory(devices / address);
    test::put(devices / address / "numa_node", node);
  }
  const std::vector<std::string> gpus = {"0001:86:00.0", "0000:3b:00.0", "0000:ff:00.0"};
  EXPECT_THAT(CpuTopology::of_machine(gpus, devices.path().string()).accelerator_nodes,
              ::testing::ElementsAre(1, 0, -1));
  EXPECT_THAT(CpuTopology::of_machine().accelerator_nodes, ::testing::IsEmpty());
}

}  // namespace
}  // namespace tandem
