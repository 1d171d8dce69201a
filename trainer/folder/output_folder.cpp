#include "trainer/folder/output_folder.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actors/checkpoint/checkpoint_folder.hpp"
#include "actors/storage/file.hpp"
#include "actors/storage/json.hpp"
#include "engine/distributed/environment.hpp"
#include "engine/metrics/earlier_files.hpp"
#include "engine/metrics/event_writer.hpp"
#include "engine/metrics/line_file.hpp"
#include "runtime/system/reach.hpp"
#include "runtime/util/error.hpp"
#include "trainer/report/block_files.hpp"

namespace tandem {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWhere = "output";
constexpr std::string_view kMetrics = "metrics.jsonl";
constexpr std::string_view kSummary = "summary.json";
/// Each is replaced as a whole, so a link in its place goes itself.
constexpr std::array kFiles = {kMetrics,
                               kSummary,
                               std::string_view("notes.txt"),
                               std::string_view("report.html"),
                               std::string_view("resolved_config.json"),
                               std::string_view("config_keys.txt"),
                               std::string_view("memory_plan.json")};
constexpr std::array<std::string_view, 4> kModels = {"model", "model-best", "adapter",
                                                     "adapter-best"};

fs::file_type type_of(const fs::path& path) {
  std::error_code ignored;
  return fs::symlink_status(path, ignored).type();
}

bool is_absent(fs::file_type type) {
  return type == fs::file_type::not_found || type == fs::file_type::none;
}

/// Before anything is trained: at the end it would cost the model.
void check_names(const fs::path& output_dir, const std::vector<std::string>& saved) {
  const auto refuse = [](const fs::path& path, std::string_view what) {
    throw user_error(kWhere, "{} {}; move it away, or give another output folder", path.string(),
                     what);
  };
  for (const std::string_view name : kFiles) {
    const fs::file_type type = type_of(output_dir / name);
    if (!is_absent(type) && type != fs::file_type::regular && type != fs::file_type::symlink) {
      refuse(output_dir / name, "is no regular file");
    }
  }
  for (const std::string& name : saved) {
    const fs::file_type type = type_of(output_dir / name);
    if (type == fs::file_type::symlink) {
      refuse(output_dir / name, "is a link, and a run saves nothing through one");
    } else if (!is_absent(type) && type != fs::file_type::directory) {
      refuse(output_dir / name, "is no folder");
    }
  }
  const fs::path checkpoints = output_dir / "checkpoints";
  std::error_code ignored;
  if (!is_absent(type_of(checkpoints)) && !fs::is_directory(checkpoints, ignored)) {
    refuse(checkpoints, "is no folder, nor a link to one");
  }
}

/// The names in a folder of checkpoints that are a run's, also of a killed one.
std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  (void)reach::list(folder, names);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("step-"); });
  std::ranges::sort(names);
  return names;
}

bool has_run(const std::string& checkpoints) {
  std::error_code ignored;
  if (!fs::is_directory(checkpoints, ignored)) {
    return false;
  }
  const NamedCheckpoints named = named_checkpoints(checkpoints);
  return !named.whole.empty() || !named.slices.empty() || !named.broken.empty();
}

/// Whether the run whose reports lie there came to its end.
bool is_finished(const fs::path& output_dir) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;
  const fs::path file = output_dir / kSummary;
  try {
    const JsonDocument summary = JsonDocument::parse(read_file(file, kWhere, kMostBytes),
                                                     {std::string(kWhere), file.string(), ""});
    return summary.root().at("ended").string() == "done";
  } catch (const Error&) {  // there is none, or it is not ours
    return false;
  }
}

/// Alike on all ranks.
void require_no_unfinished_run(const RunFlags& flags, Communicator& ranks, const Disks& disks) {
  if (!flags.resume.empty() || flags.overwrite_output_dir) {
    return;
  }
  const bool looks = disks.is_first_of_its_disk(static_cast<std::uint32_t>(ranks.rank()));
  const std::string checkpoints = checkpoints_of(flags.output_dir);
  std::string mine;
  if (looks) {
    mine = has_run(checkpoints) ? "checkpoints" : "";
    mine += ranks.rank() == 0 && is_finished(flags.output_dir) ? " finished" : "";
  }
  const std::vector<std::string> said = ranks.of_all_ranks(mine);
  const bool any = std::ranges::any_of(
      said, [](const std::string& text) { return text.starts_with("checkpoints"); });
  if (any && !said.front().ends_with("finished")) {
    throw user_error(kWhere,
                     "{} holds checkpoints of a run that has not ended; --resume auto goes on, "
                     "--overwrite_output_dir begins anew and moves them to earlier-N",
                     checkpoints);
  }
}

}  // namespace

std::string checkpoints_of(const std::string& output_dir) { return output_dir + "/checkpoints"; }

std::vector<OwnFolder> own_folders(const std::string& output_dir) {
  std::vector<OwnFolder> own;
  if (!output_dir.empty()) {
    own.emplace_back(output_dir);
    own.emplace_back(checkpoints_of(output_dir));
  }
  return own;
}

TakenFolders::~TakenFolders() {
  checkpoints_.reset();
  output_.reset();
  for (; !made_.empty(); made_.pop_back()) {
    (void)reach::remove_folder(made_.back());
  }
}

void go_on_after_restart(RunFlags& flags, Communicator& ranks) {
  const bool is_restart = parse_environment(process_variables()).restart > 0;
  if (!is_restart || !flags.resume.empty() || flags.overwrite_output_dir ||
      flags.output_dir.empty()) {
    return;
  }
  // Checkpoints of a finished run: the one that is started again has not come to its first step.
  const bool has_own = ranks.rank() == 0 && has_run(checkpoints_of(flags.output_dir)) &&
                       !is_finished(flags.output_dir);
  flags.resume = ranks.of_first_rank(has_own ? "auto" : "");
}

TakenFolders take_output_dir(const RunFlags& flags, Communicator& ranks, const Disks& disks,
                             const std::vector<std::string>& saved) {
  TakenFolders taken;
  if (disks.is_first_of_its_disk(static_cast<std::uint32_t>(ranks.rank()))) {
    const std::string& folder = flags.output_dir;
    const bool is_new = !fs::exists(folder);
    make_output_dir(folder);
    if (is_new) {
      taken.made_.push_back(folder);
    }
    taken.own_.emplace_back(folder);
    // Where a run was begun anew, a lost host's ranks may still save, for as long as their
    // launcher takes to find out that it is alone.
    constexpr std::chrono::seconds kMostAlone{90};
    const bool is_restart = parse_environment(process_variables()).restart > 0;
    const std::chrono::seconds patience = is_restart ? kMostAlone : std::chrono::seconds(0);
    const std::string holder =
        fmt::format("{}, process {}", program_invocation_short_name, ::getpid());
    taken.output_.emplace(folder, kWhere, holder, patience);
    check_names(folder, saved);
    const std::string checkpoints = checkpoints_of(folder);
    const bool saves = flags.save_every > 0 || !flags.stop_after.empty();
    if (saves && reach::make_folder(checkpoints) == 0) {
      taken.made_.push_back(checkpoints);
    }
    taken.own_.emplace_back(checkpoints);
    // Several output folders may have links to one folder of checkpoints.
    if (std::error_code ignored; fs::is_directory(checkpoints, ignored)) {
      taken.checkpoints_.emplace(checkpoints, kWhere, holder, patience);
    }
    remove_abandoned_files(folder);
    for (const std::string& name : saved) {
      remove_abandoned(fs::path(folder) / name);
    }
  }
  require_no_unfinished_run(flags, ranks, disks);
  (void)ranks.of_all_ranks("");  // the folders are there
  if (taken.own_.empty()) {
    taken.own_ = own_folders(flags.output_dir);
  }
  return taken;
}

std::optional<fs::path> set_aside_earlier_run(const fs::path& output_dir, bool reports,
                                              std::string_view own_events) {
  const auto is_report = [&](std::string_view name) {
    const bool has_metrics = name == kMetrics && fs::file_size(output_dir / name) > 0;
    return has_metrics || name == kSummary || name == "report.html" || name == "trace.json.gz" ||
           name == kCommsFile || name == kFlopsFile || (is_event_file(name) && name != own_events);
  };
  std::optional<fs::path> aside;
  if (reports) {
    aside = move_aside(output_dir, is_report, kMetrics);  // it begins anew
  }
  const fs::path checkpoints = output_dir / "checkpoints";
  std::vector<std::string> names = entries_of(checkpoints);
  std::erase_if(names, &is_killed_save);  // the next save removes what a killed one left
  if (!names.empty()) {
    const bool is_link = type_of(checkpoints) == fs::file_type::symlink;
    aside = aside ? aside : make_earlier(output_dir);
    // Behind a link there may be another disk, where a rename does not lead from.
    const fs::path into = is_link ? make_earlier(checkpoints) : *aside / "checkpoints";
    if (!is_link && reach::make_folder(into) != 0) {
      throw fs::filesystem_error("cannot make the folder", into,
                                 std::error_code(errno, std::generic_category()));
    }
    for (const std::string& name : names) {
      move_entry(checkpoints, into, name);
    }
  }
  for (const std::string_view name : kModels) {
    if (reports && aside && type_of(output_dir / name) == fs::file_type::directory) {
      link_entry(output_dir, *aside, name);
    }
  }
  return aside;
}

}  // namespace tandem
