#include "tools/launch/host_list.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/system/owned_descriptor.hpp"
#include "runtime/util/error.hpp"
#include "runtime/util/one_line.hpp"
#include "runtime/util/split.hpp"
#include "tools/launch/child_signals.hpp"

namespace tandem {
namespace {

constexpr int kMostSlots = 1024;
constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // per file
constexpr std::size_t kLongestName = 255;                  // a host's name
constexpr std::size_t kMostNames = 8;                      // that an error lists
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

std::optional<int> number(std::string_view text) {
  text = trimmed(text);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

/// A line as an error quotes it, however long it is.
std::string quote(std::string_view text) { return one_line(text.substr(0, 80)); }

bool holds(const std::vector<int>& slots, int slot) {
  return std::ranges::find(slots, slot) != slots.end();
}

// Every name is one for ssh, and never a flag.
bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && text.front() != '-' &&
         std::ranges::all_of(text, [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
         });
}

HostSlots host_of(std::string_view where, std::string_view name, std::optional<int> slots,
                  std::string_view said) {
  if (!is_host_name(name)) {
    throw user_error("launch",
                     "{}: \"{}\" is no host's name; it takes letters, digits, dots and dashes (a "
                     "user's name goes into ~/.ssh/config)",
                     where, quote(name));
  }
  if (!slots || *slots < 1 || *slots > kMostSlots) {
    throw user_error("launch", "{}: {} has \"{}\" slots; it takes 1 to {}", where, name,
                     quote(said), kMostSlots);
  }
  HostSlots host{.name = std::string(name), .slots = {}};
  for (int slot = 0; slot < *slots; ++slot) {
    host.slots.push_back(slot);
  }
  return host;
}

using Names = std::unordered_map<std::string_view, std::size_t>;  // each host's place, by its name

void add(std::vector<HostSlots>& hosts, std::unordered_set<std::string>& names, HostSlots host,
         std::string_view where) {
  if (!names.insert(host.name).second) {
    throw user_error("launch", "{}: host {} is there twice; give it one line with all its slots",
                     where, host.name);
  }
  hosts.push_back(std::move(host));
}

/// All of it. A FIFO, which may have no writer, and a device, which may have no end, are refused.
std::string text_of(const std::string& path, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    throw user_error("launch", "cannot read the {} {}: {}; give a file that is there", what,
                     one_line(path), why);
  };
  const OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat about{};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) {
    refuse(std::strerror(errno));
  }
  if (S_ISDIR(about.st_mode) || !S_ISREG(about.st_mode)) {
    refuse(S_ISDIR(about.st_mode) ? std::strerror(EISDIR) : "it is no ordinary file");
  }
  std::string text;
  char buffer[1 << 16];
  for (ssize_t got = 0; (got = ::read(file.get(), buffer, sizeof(buffer))) != 0;) {
    if (got < 0) {
      refuse(std::strerror(errno));
    }
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) {
      throw user_error("launch", "the {} {} has more than {} MiB; give a shorter one", what,
                       one_line(path), kMostBytes >> 20);
    }
  }
  return text;
}

struct Choice {
  std::size_t host;
  std::vector<int> slots;  // empty: all
};

std::vector<Choice> choices_of(const std::vector<HostSlots>& hosts, std::string_view flag,
                               std::string_view text) {
  std::vector<Choice> choices;
  Names places;
  for (std::size_t place = 0; place < hosts.size(); ++place) {
    places.emplace(hosts[place].name, place);
  }
  for (const std::string_view part : split(text, '@')) {
    const std::string_view name = trimmed(part.substr(0, part.find(':')));
    const auto place = places.find(name);
    if (place == places.end()) {
      std::vector<std::string> names;
      std::ranges::transform(
          hosts.begin(),
          hosts.begin() + static_cast<std::ptrdiff_t>(std::min(hosts.size(), kMostNames)),
          std::back_inserter(names), &HostSlots::name);
      throw user_error(
          "launch", "{}: there is no host \"{}\"; the hosts are {}{}", flag, quote(name),
          fmt::join(names, ", "),
          hosts.size() > kMostNames ? fmt::format(" and {} more", hosts.size() - kMostNames) : "");
    }
    const HostSlots* const found = &hosts[place->second];
    Choice choice{.host = place->second, .slots = {}};
    if (part.find(':') != std::string_view::npos) {
      for (const std::string_view one : split(part.substr(part.find(':') + 1), ',')) {
        const auto slot = number(one);
        if (!slot || !holds(found->slots, *slot)) {
          throw user_error("launch", "{}: {} has no slot \"{}\"; its slots are 0 to {}", flag,
                           found->name, quote(trimmed(one)), found->slots.back());
        }
        choice.slots.push_back(*slot);
      }
    }
    choices.push_back(std::move(choice));
  }
  return choices;
}

bool is_variable_name(std::string_view text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

/// Where each name is among the variables.
using Places = std::unordered_map<std::string, std::size_t>;

void set_variable(NamesAndValues& all, Places& places, std::string_view name,
                  std::string_view value) {
  const auto [place, is_new] = places.try_emplace(std::string(name), all.size());
  if (!is_new) {
    all[std::exchange(place->second, all.size())].first.clear();  // it goes at the end
  }
  all.emplace_back(name, value);
}

void add_variables(const std::string& path, NamesAndValues& all, Places& places) {
  const std::string text = text_of(path, "file of variables");
  int number = 0;
  for (const std::string_view raw : split(text, '\n')) {
    ++number;
    const std::string_view line = trimmed(raw);
    if (line.empty() || line.front() == '#') {
      continue;
    }
    const std::size_t equals = line.find('=');
    const std::string_view name = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_variable_name(name) ||
        line.find('\0') != std::string_view::npos) {
      throw user_error("launch", "{}:{}: \"{}\" is no NAME=VALUE; correct or remove the line",
                       one_line(path), number, quote(line));
    }
    set_variable(all, places, name, trimmed(line.substr(equals + 1)));
  }
}

}  // namespace

std::vector<HostSlots> read_hostfile(const std::string& path) {
  const std::string text = text_of(path, "hostfile");
  std::vector<HostSlots> hosts;
  std::unordered_set<std::string> names;
  int number_of_line = 0;
  for (const std::string_view raw : split(text, '\n')) {
    ++number_of_line;
    const std::string_view line = trimmed(raw.substr(0, raw.find('#')));
    if (line.empty()) {
      continue;
    }
    const std::string where = fmt::format("{}:{}", one_line(path), number_of_line);
    constexpr std::string_view kSlots = "slots=";
    const std::string_view name = line.substr(0, line.find_first_of(kBlanks));
    const std::string_view rest = trimmed(line.substr(name.size()));
    if (!rest.starts_with(kSlots)) {
      throw user_error("launch", "{}: \"{}\" is not as a hostfile's lines are: NAME slots=N", where,
                       quote(line));
    }
    const std::string_view slots = rest.substr(kSlots.size());
    add(hosts, names, host_of(where, name, number(slots), slots), where);
  }
  if (hosts.empty()) {
    throw user_error("launch", "the hostfile {} names no host; give it lines NAME slots=N",
                     one_line(path));
  }
  return hosts;
}

std::vector<HostSlots> parse_hosts(std::string_view text) {
  std::vector<HostSlots> hosts;
  std::unordered_set<std::string> names;
  for (const std::string_view one : split(text, ',')) {
    const std::string_view part = trimmed(one);
    const std::size_t colon = std::min(part.find(':'), part.size());
    const std::string_view slots = colon < part.size() ? part.substr(colon + 1) : "1";
    add(hosts, names, host_of("--hosts", part.substr(0, colon), number(slots), slots), "--hosts");
  }
  return hosts;
}

std::vector<HostSlots> choose_slots(const std::vector<HostSlots>& hosts, std::string_view include,
                                    std::string_view exclude) {
  if (include.empty() && exclude.empty()) {
    return hosts;
  }
  if (!include.empty() && !exclude.empty()) {
    throw user_error("launch", "--include and --exclude contradict each other; give one of them");
  }
  std::vector<HostSlots> chosen = hosts;
  if (!include.empty()) {
    std::ranges::for_each(chosen, [](HostSlots& host) { host.slots.clear(); });
  }
  const std::string_view flag = include.empty() ? "--exclude" : "--include";
  const std::vector<Choice> choices = choices_of(hosts, flag, include.empty() ? exclude : include);
  for (const Choice& choice : choices) {
    std::vector<int>& slots = chosen[choice.host].slots;
    if (include.empty()) {
      const std::vector<int>& left_out =
          choice.slots.empty() ? hosts[choice.host].slots : choice.slots;
      std::erase_if(slots, [&](int slot) { return holds(left_out, slot); });
    } else {
      slots.insert(slots.end(), choice.slots.begin(), choice.slots.end());
    }
  }
  // A host that is named alone, too, has the slots that are named with it.
  for (const Choice& choice : choices) {
    HostSlots& host = chosen[choice.host];
    if (!include.empty() && host.slots.empty()) {
      host.slots = hosts[choice.host].slots;
    }
    std::ranges::sort(host.slots);
    host.slots.erase(std::ranges::unique(host.slots).begin(), host.slots.end());
  }
  std::erase_if(chosen, [](const HostSlots& host) { return host.slots.empty(); });
  if (chosen.empty()) {
    throw user_error("launch", "{} {} leaves no slot of any host; leave some", flag,
                     quote(exclude));
  }
  return chosen;
}

NamesAndValues read_deepspeed_env() {
  const char* const other = std::getenv("DS_ENV_FILE");
  const std::string name = other != nullptr && *other != 0 ? other : ".deepspeed_env";
  NamesAndValues variables;
  Places places;
  std::vector<std::filesystem::path> folders;
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0) {
    folders.emplace_back(home);
  }
  folders.emplace_back(".");
  for (const std::filesystem::path& folder : folders) {
    const std::string path = (folder / name).string();
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) {
      add_variables(path, variables, places);
    }
  }
  std::erase_if(variables, [](const auto& earlier) { return earlier.first.empty(); });
  return variables;
}

NamesAndValues variables_for_hosts() {
  NamesAndValues all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool is_handed_on = std::ranges::any_of(
        std::initializer_list<std::string_view>{"MLFLOW", "NCCL", "PYTHON", "MV2", "UCX", "TANDEM_",
                                                "OMP_", "GOMP_"},
        [&](std::string_view begin) { return name.starts_with(begin); });
    const bool is_of_this_process =
        name.starts_with("TANDEM_RUN_SECRET") || name == "TANDEM_FLIGHT_FD" || name == kLaunchMark;
    if (is_handed_on && !is_of_this_process && name.size() < text.size()) {
      all.emplace_back(name, text.substr(name.size() + 1));
    }
  }
  return all;
}

}  // namespace tandem
