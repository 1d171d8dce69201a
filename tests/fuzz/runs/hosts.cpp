// Hosts of a launch: a hostfile, --hosts, --include and --exclude of it, a file of variables. The
// first byte says which.
#include <algorithm>
#include <cstdlib>

#include "tests/fuzz/fuzz.hpp"
#include "tools/launch/host_list.hpp"

namespace tandem::fuzz {
namespace {

void check(const std::vector<HostSlots>& hosts) {
  expect(!hosts.empty(), "a launch has a host");
  for (const HostSlots& host : hosts) {
    expect(!host.name.empty() && host.name.front() != '-' && host.name.size() <= 255,
           "a host's name is no flag of ssh");
    expect(!host.slots.empty() && std::ranges::is_sorted(host.slots), "slots ascend");
  }
}

}  // namespace

void read(std::string_view input) {
  const int kind = input.empty() ? 0 : input.front() % 5;
  input.remove_prefix(input.empty() ? 0 : 1);
  const std::size_t cut = std::min(input.find('\0'), input.size());
  const std::string_view second = input.substr(std::min(cut + 1, input.size()));
  if (kind == 0) {
    check(read_hostfile(put(input, "hosts").string()));
  } else if (kind == 1) {
    check(parse_hosts(input));
  } else if (kind == 2) {
    check(choose_slots(parse_hosts(input.substr(0, cut)), second, ""));
  } else if (kind == 3) {
    check(choose_slots(parse_hosts(input.substr(0, cut)), "", second));
  } else {
    (void)put(input, ".deepspeed_env");
    ::setenv("HOME", folder().c_str(), 1);
    for (const auto& [name, value] : read_deepspeed_env()) {
      expect(!name.empty() && name.find('=') == std::string::npos &&
                 value.find('\0') == std::string::npos,
             "a variable can be set");
    }
  }
}

}  // namespace tandem::fuzz
