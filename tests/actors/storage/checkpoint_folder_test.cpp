#include "actors/checkpoint/checkpoint_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>

#include <sys/stat.h>

#include "actors/checkpoint/save_whole.hpp"
#include "runtime/io/faulty_files.hpp"
#include "runtime/util/build.hpp"
#include "tests/actors/storage/checkpoint_fixture.hpp"
#include "tests/actors/storage/earlier_slices.hpp"

namespace tandem {
namespace {

using Names = std::vector<std::string>;

void put_byte(const std::string& path, std::uint64_t at, char byte) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(at))
      .put(byte);
}

class CheckpointFolder : public CheckpointTest {
 protected:
  Names names() {
    return loop.run(
        [](FileIo* io, std::string f) -> Task<Names> { co_return co_await io->list_folder(f); },
        &files, parent);
  }
  /// A disk's slices, one run of a tensor that two disks share, of the save with that id.
  void save_slices(std::int64_t step, char id) {
    const std::string folder = parent + "/" + checkpoint_name(step);
    const std::string file = "master-00001-of-00001.safetensors";
    CheckpointPlan plan{.step = step,
                        .folder = folder,
                        .temporary = temporary_checkpoint(folder, nonce_text(1)),
                        .files = {{file, {{"embed.weight[0:35]", TensorType::kF32, {35}}}}},
                        .slices = ManifestSlices{}};
    plan.slices->save = std::string(32, id);
    plan.slices->hosts = {"a", "b"};
    plan.slices->whole = {{file, {{"embed.weight", TensorType::kF32, {14, 5}}}}};
    loop.run(save_checkpoint, &files, plan, 1U, std::size_t{100});
  }
  /// "STEP ID", newest first.
  [[nodiscard]] Names found_slices() const {
    Names found;
    for (const FoundSlices& slices : named_checkpoints(parent).slices) {
      found.push_back(fmt::format("{} {}", slices.step, slices.save.front()));
      EXPECT_EQ(slices.disk, 0U);
      EXPECT_EQ(slices.disks, 2U);
    }
    return found;
  }
};

TEST(CheckpointName, IsReadBackOnlyAsItIsWritten) {
  EXPECT_EQ(checkpoint_name(20), "step-00000020");
  EXPECT_EQ(checkpoint_name(1'234'567'890), "step-1234567890");
  for (const std::int64_t step :
       {std::int64_t{0}, std::int64_t{20}, std::int64_t{1'234'567'890}, INT64_MAX}) {
    EXPECT_EQ(step_of_checkpoint(checkpoint_name(step)), step);
  }
  for (const char* other : {"", "step-", "step-20", "step-0000002x", "step-00000020.tmp-1",
                            "step--0000020", "step-000000020", "Step-00000020",
                            "step-99999999999999999999", " step-00000020", "step-00000020 "}) {
    EXPECT_EQ(step_of_checkpoint(other), std::nullopt) << other;
  }
}

TEST_F(CheckpointFolder, FindsTheWholeOnesNewestFirst) {
  for (const std::int64_t step : {30, 10, 40, 20, 50, 60}) {
    save(step);
  }
  const auto at = [&](int step, const char* name) {
    return fmt::format("{}/{}/{}", parent, checkpoint_name(step), name);
  };
  std::filesystem::remove(at(10, "manifest.json"));
  std::filesystem::remove(at(20, "exp_avg-00000.safetensors"));
  std::filesystem::resize_file(at(40, "state.json"), 5);
  std::filesystem::rename(parent + "/step-00000060", parent + "/step-00000070");
  std::filesystem::create_directory(parent + "/step-00000080");
  std::filesystem::create_directory(parent + "/step-00000090.tmp-1");
  std::ofstream(parent + "/step-00000100") << "a file";
  std::ofstream(parent + "/notes") << "of the user's";
  const auto whole = found();
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_EQ(whole[0].step, 50);
  EXPECT_EQ(whole[1].step, 30);
  ASSERT_EQ(broken.size(), 6U);
  EXPECT_EQ(broken[0], fmt::format("{0}/step-00000010: [file] cannot open "
                                   "{0}/step-00000010/manifest.json: No such file or directory",
                                   parent));
  EXPECT_EQ(broken[3], fmt::format("{}/step-00000070: [checkpoint] its manifest is of step 60; "
                                   "give the folder its own name back",
                                   parent));
  EXPECT_EQ(
      broken[5],
      fmt::format(
          "{0}/step-00000100: [file] cannot open {0}/step-00000100/manifest.json: Not a directory",
          parent));
  std::string error;
  try {
    static_cast<void>(loop.run(find_checkpoints, &files, parent + "/none", nullptr));
  } catch (const FileError& caught) {
    error = caught.what();
  }
  EXPECT_EQ(error, "[file] cannot list the folder " + parent + "/none: No such file or directory")
      << "a wrong path is no fresh start";
}

TEST_F(CheckpointFolder, PartsAreVerifiedByThemselves) {
  save(20, 2);
  const std::string folder = parent + "/step-00000020";
  std::fstream(folder + "/exp_avg_sq-00000.safetensors", std::ios::in | std::ios::out)
      .seekp(-1, std::ios::end)
      .put(1);
  std::ofstream(folder + "/client_state.json", std::ios::app) << "more";
  std::filesystem::remove(folder + "/state.json");
  const Manifest manifest = loop.run(read_manifest, &files, folder);
  EXPECT_EQ(loop.run(verify_files, &files, folder, manifest, 0U, 1U, nullptr).size(), 3U);
  Names faults;
  for (std::uint32_t part = 0; part < 4; ++part) {
    for (const std::string& fault :
         loop.run(verify_files, &files, folder, manifest, part, 4U, nullptr)) {
      faults.push_back(fmt::format("{} {}", part, fault));
    }
  }
  ASSERT_EQ(faults.size(), 3U);
  EXPECT_EQ(faults[0], fmt::format("0 {}/client_state.json: has 7 bytes, not 3", folder));
  EXPECT_TRUE(faults[1].starts_with(fmt::format(
      "2 {}/exp_avg_sq-00000.safetensors: tensor \"embed.weight\" has the hash ", folder)));
  EXPECT_EQ(
      faults[2],
      fmt::format("3 {0}/state.json: [file] cannot open {0}/state.json: No such file or directory",
                  folder));
}

TEST_F(CheckpointFolder, KeepsTheNewestAndRemovesWhatWasKilled) {
  for (const std::int64_t step : {10, 20, 30, 40}) {
    save(step);
  }
  std::filesystem::resize_file(parent + "/step-00000040/state.json", 5);
  const Names users = {"mine.tmp-0123456789abcdef", "step-00000040.tmp-20261128",
                       "step-00000040.tmp-mine", "step-00000040.tmp-old"};
  Names folders = users;
  folders.insert(folders.end(),
                 {"step-00000050.tmp-0123456789abcdef", "step-00000010.tmp-old-0123456789abcdef"});
  for (const std::string& name : folders) {
    const std::string folder = "/" + name;
    std::filesystem::create_directory(parent + folder);
    std::ofstream(parent + folder + "/file") << "x";
  }
  std::ofstream(parent + "/.tandem.tmp-0123456789abcdef");  // a killed rank's, by which it is found
  loop.run(remove_older, &files, parent, 2, INT64_MAX);
  const auto with_users = [&](Names more) {
    more.insert(more.end(), users.begin(), users.end());
    std::ranges::sort(more);
    return more;
  };
  EXPECT_EQ(names(), with_users({"step-00000020", "step-00000030", "step-00000040"}));
  loop.run(remove_older, &files, parent, 0, INT64_MAX);
  EXPECT_EQ(names(), with_users({"step-00000030", "step-00000040"})) << "one whole one stays";
  loop.run(remove_older, &files, parent, 5, INT64_MAX);
  EXPECT_EQ(names(), with_users({"step-00000030", "step-00000040"}));
}

// A link leads to what is another's, or was moved there to be kept.
TEST_F(CheckpointFolder, WhatALinkLeadsToStays) {
  namespace fs = std::filesystem;
  for (const std::int64_t step : {10, 20, 30}) {
    save(step);
  }
  const std::string outside = parent + "-outside";
  fs::create_directory(outside);
  std::ofstream(outside + "/thesis.tex") << "precious";
  fs::rename(parent + "/step-00000010", outside + "/moved");
  fs::create_directory_symlink(outside + "/moved", parent + "/step-00000010");
  fs::create_directory_symlink(outside, parent + "/step-00000040.tmp-0123456789abcdef");
  fs::create_directory_symlink(outside, parent + "/step-00000020/notes");
  const auto before = content_of(outside);
  loop.run(remove_older, &files, parent, 1, INT64_MAX);
  EXPECT_EQ(names(), (Names{"step-00000010", "step-00000030"}));
  EXPECT_EQ(content_of(outside), before);
  fs::remove_all(outside);
}

TEST_F(CheckpointFolder, FoldersWithinAnOldOneGoAsWell) {
  for (const std::int64_t step : {10, 20}) {
    save(step);
  }
  std::filesystem::create_directories(parent + "/step-00000010/hf/of the user's");
  std::ofstream(parent + "/step-00000010/hf/config.json") << "{}";
  loop.run(remove_older, &files, parent, 1, INT64_MAX);
  EXPECT_EQ(names(), Names{"step-00000020"});
}

TEST_F(CheckpointFolder, OneThatCannotBeRemovedDoesNotKeepTheOthers) {
  for (const std::int64_t step : {10, 20, 30, 40}) {
    save(step);
  }
  auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
  faulty->set_rule([](const FileOp& op, std::uint64_t) {
    const bool is_it =
        op.request.kind == FileRequest::Kind::kRename && op.request.path.ends_with("step-00000020");
    return FileFault{.error_number = is_it ? EPERM : 0};
  });
  FileIo io(loop, std::move(faulty));
  std::string error;
  try {
    loop.run(remove_older, &io, parent, 1, INT64_MAX);
  } catch (const FileError& caught) {
    error = caught.what();
  }
  EXPECT_TRUE(error.starts_with("[file] cannot rename " + parent + "/step-00000020 to ")) << error;
  EXPECT_EQ(names(), (Names{"step-00000020", "step-00000040"}));
}

/// Saves a checkpoint of step 30, with a NaN in the master of its first tensor.
void save_not_finite(EventLoop* loop, FileIo* io, const std::string& parent) {
  CheckpointPlan plan = small_plan(parent, 30);
  plan.files.resize(1);
  loop->run(
      [](FileIo* files, const CheckpointPlan* what) -> Task<> {
        const FillTensor fill = [](std::size_t, std::size_t tensor, std::int64_t begin,
                                   std::int64_t end, float* out) {
          std::fill_n(out, end - begin, 1.0F);
          if (tensor == 0) {
            out[17] = std::numeric_limits<float>::quiet_NaN();
          }
        };
        co_await save_whole(files, nullptr, what, fill, small_texts(30));
      },
      io, &plan);
}

// A run whose weights went bad goes on saving for a while.
TEST_F(CheckpointFolder, OneThatIsNotFiniteIsNoneToResumeFromAndTakesNoPlace) {
  for (const std::int64_t step : {10, 20}) {
    save(step);
  }
  save_not_finite(&loop, &files, parent);
  const std::string folder = parent + "/step-00000030";
  const auto whole = found();
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_EQ(whole[0].step, 20);
  EXPECT_EQ(broken, Names{folder + ": master-00000.safetensors: tensor \"embed.weight\" holds a "
                                   "value that is not finite"});
  EXPECT_EQ(
      loop.run(faults_of, &files, folder),
      Names{folder + "/master-00000.safetensors: tensor \"embed.weight\" holds a value that is "
                     "not finite"})
      << "by its bytes, whatever the manifest says";
  save(40);
  loop.run(remove_older, &files, parent, 2, std::int64_t{40});
  EXPECT_EQ(names(), (Names{"step-00000020", "step-00000040"}));
}

TEST_F(CheckpointFolder, APipeInPlaceOfAFileHangsNobody) {
  save(10);
  save(20);
  std::filesystem::remove(parent + "/step-00000020/manifest.json");
  ASSERT_EQ(::mkfifo((parent + "/step-00000020/manifest.json").c_str(), 0600), 0);
  ASSERT_EQ(found().size(), 1U);
  EXPECT_EQ(broken, Names{fmt::format("{0}/step-00000020: [file] cannot open "
                                      "{0}/step-00000020/manifest.json: it is no regular file",
                                      parent)});
}

// Once some of its disks have removed it, a checkpoint is whole on none.
TEST_F(CheckpointFolder, SlicesCountUnderATemporaryNameButNotUnderARemovalsOne) {
  for (const std::int64_t step : {10, 20, 30}) {
    save_slices(step, 'a');
  }
  EXPECT_EQ(found_slices(), (Names{"30 a", "20 a", "10 a"}));
  std::filesystem::rename(parent + "/step-00000010",
                          parent + "/step-00000010.tmp-old-0123456789abcdef");
  std::filesystem::rename(parent + "/step-00000030",
                          parent + "/step-00000030.tmp-0123456789abcdef");
  EXPECT_EQ(found_slices(), (Names{"30 a", "20 a"}));
  loop.run(remove_older, &files, parent, 5, INT64_MAX);
  EXPECT_EQ(names(), Names{"step-00000020"});
}

TEST_F(CheckpointFolder, SlicesOfAnEarlierVersionCountAlike) {
  for (const std::int64_t step : {10, 20, 30}) {
    save_slices(step, 'a');
    test::make_earlier(parent + "/" + checkpoint_name(step));
  }
  std::filesystem::rename(parent + "/step-00000030",
                          parent + "/step-00000030.tmp-0123456789abcdef");
  EXPECT_EQ(found_slices(), (Names{"30 a", "20 a", "10 a"}));
  const std::string folder = parent + "/step-00000020";
  EXPECT_EQ(named_checkpoints(folder).slices.size(), 1U);
  const Manifest manifest = loop.run(read_manifest, &files, folder);
  const auto faults = [&] {
    return loop.run(verify_entries, &files, folder, manifest.files, 0U, 1U, nullptr);
  };
  EXPECT_TRUE(faults().empty());
  put_byte(folder + "/state.json", 2, '!');
  EXPECT_EQ(faults().size(), 1U);
  // A save takes the name of one, as of any other checkpoint, and removals know it.
  save_slices(20, 'b');
  EXPECT_EQ(found_slices(), (Names{"30 a", "20 b", "10 a"}));
  loop.run(remove_older, &files, parent, 1, INT64_MAX);
  EXPECT_EQ(names(), Names{"step-00000020"});
}

TEST_F(CheckpointFolder, OfTwoSavesOfAStepTheLaterOneIsTheNewer) {
  save_slices(20, 'a');
  std::filesystem::rename(parent + "/step-00000020", parent + "/step-00000020.tmp-ffffffff");
  save_slices(20, 'b');
  EXPECT_EQ(found_slices(), (Names{"20 b", "20 a"}));
  std::filesystem::rename(parent + "/step-00000020.tmp-ffffffff", parent + "/aside");
  std::filesystem::rename(parent + "/step-00000020", parent + "/step-00000020.tmp-00000000");
  std::filesystem::rename(parent + "/aside", parent + "/step-00000020");
  EXPECT_EQ(found_slices(), (Names{"20 b", "20 a"})) << "whichever has the name";
}

TEST_F(CheckpointFolder, AnInterruptedRemovalLeavesWholeOnesOrNothing) {
  for (std::uint64_t k = 1;; ++k) {
    for (const std::int64_t step : {10, 20, 30}) {
      save(step);
    }
    auto faulty = std::make_unique<FaultyFiles>(loop, FileIo::make_backend(loop, {}));
    FaultyFiles& faults = *faulty;
    faults.set_rule([k](const FileOp&, std::uint64_t call) {
      return FileFault{.error_number = call >= k ? EIO : 0};
    });
    FileIo io(loop, std::move(faulty));
    bool failed = false;
    try {
      loop.run(remove_older, &io, parent, 1, INT64_MAX);
    } catch (const FileError&) {
      failed = true;
    }
    const auto whole = found();
    ASSERT_GE(whole.size(), 1U);
    EXPECT_EQ(whole[0].step, 30);
    EXPECT_TRUE(broken.empty()) << k << ": " << broken[0];
    loop.run(remove_older, &files, parent, 1, INT64_MAX);
    EXPECT_EQ(names(), Names{"step-00000030"});
    if (!failed && faults.calls() < k) {
      EXPECT_GT(k, 10U);
      return;
    }
  }
}

/// Returns the name that an error has for the flipped byte: its file and tensor.
std::string expected_name(const Manifest& manifest, const std::string& file, std::uint64_t byte) {
  const auto entry = std::ranges::find(manifest.files, file, &ManifestFile::name);
  if (entry == manifest.files.end() || entry->tensors.empty()) {
    return file;
  }
  for (const ManifestTensor& tensor : entry->tensors) {
    if (byte >= tensor.begin_byte && byte < tensor.begin_byte + tensor.size_bytes) {
      return fmt::format("{}: tensor \"{}\"", file, tensor.name);
    }
  }
  return file + ": its header";
}

/// A checkpoint of a file with `count` tensors of 5 elements, whose values the step decides.
std::string save_many(EventLoop& loop, FileIo& files, const std::string& parent, std::int64_t step,
                      int count) {
  CheckpointPlan plan = small_plan(parent, step);
  plan.files.resize(1);
  plan.files.front().tensors.clear();
  for (int i = 0; i < count; ++i) {
    plan.files.front().tensors.push_back({fmt::format("t{:02}", i), TensorType::kF32, {5}});
  }
  loop.run(save_checkpoint, &files, plan, 1U, std::size_t{100});
  return parent + "/" + checkpoint_name(step) + "/" + plan.files.front().name;
}

TEST_F(CheckpointFolder, AFileOfWhichLittleIsRightHasFewLines) {
  const std::string one = save_many(loop, files, parent, 20, 12);
  const std::string other = save_many(loop, files, parent, 30, 12);
  const std::string folder = parent + "/step-00000020";
  const std::string kept = text_of(one);
  const auto faults = [&] { return loop.run(faults_of, &files, folder); };
  std::ofstream(one, std::ios::binary) << text_of(other);
  Names found = faults();
  ASSERT_EQ(found.size(), 1U) << "another checkpoint's file";
  EXPECT_TRUE(found[0].starts_with(one + ": none of its 12 tensors is as saved: it has the hash "));
  // All but the first of the tensors, which lie behind the header.
  std::string mixed = kept;
  const std::size_t first = kept.size() - std::size_t{11} * 5 * 4;
  mixed.replace(first, std::string::npos, text_of(other).substr(first));
  std::ofstream(one, std::ios::binary) << mixed;
  found = faults();
  ASSERT_EQ(found.size(), 9U);
  EXPECT_TRUE(found[0].starts_with(one + ": tensor \"t01\" has the hash ")) << found[0];
  EXPECT_TRUE(found[7].starts_with(one + ": tensor \"t08\" has the hash ")) << found[7];
  EXPECT_EQ(found[8], one + ": and 3 more of its 12 tensors have other hashes");
  std::ofstream(one, std::ios::binary) << kept;
  EXPECT_TRUE(faults().empty());
}

TEST_F(CheckpointFolder, EveryFlippedBitIsFoundAndItsTensorNamed) {
  save(20, 2);
  const std::string folder = parent + "/step-00000020";
  const Manifest manifest = loop.run(read_manifest, &files, folder);
  const auto content = content_of(folder);
  constexpr int kFlips = kAddressSanitizer || kThreadSanitizer ? 500 : 10'000;
  Random random(5);
  int detected = 0;
  for (int i = 0; i < kFlips; ++i) {
    auto file = std::next(content.begin(), i % std::ssize(content));
    const std::uint64_t byte = random.below(file->second.size());
    const char kept = file->second[byte];
    put_byte(folder + "/" + file->first, byte, static_cast<char>(kept ^ (1 << random.below(8))));
    const Names faults = loop.run(faults_of, &files, folder);
    const std::string expected = expected_name(manifest, file->first, byte);
    const bool named = faults.size() == 1 && faults[0].find(expected) != std::string::npos;
    EXPECT_TRUE(named) << expected << ", found " << faults.size();
    detected += named ? 1 : 0;
    put_byte(folder + "/" + file->first, byte, kept);
  }
  EXPECT_TRUE(loop.run(faults_of, &files, folder).empty());
  EXPECT_EQ(detected, kFlips);
  std::printf("bit flips found and named: %d of %d\n", detected, kFlips);
}

}  // namespace
}  // namespace tandem
