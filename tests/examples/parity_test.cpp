// `tandem parity` on every reference folder: logits, gradients, training traces and final weights
// through the real engine. The small folders are in every clone (tests/data/references).
#include <functional>
#include <map>

#include <fmt/ranges.h>

#include "actors/storage/safetensors_header.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class Parity : public TrainerTest, public testing::WithParamInterface<std::string> {};

TEST_P(Parity, EveryCheckPasses) {
  const fs::path folder = fs::path(test::source_dir()) / GetParam();
  const Finished done =
      shell(fmt::format("'{}/tandem' parity '{}'", test::bin_dir(), folder.string()));
  EXPECT_EQ(done.code, 0) << done.out << done.err;
  EXPECT_EQ(done.out.find("FAIL"), std::string::npos) << done.out;
  for (const char* check : {"logits max_abs=", "loss max_abs=", "grads (worst", "trace clip loss",
                            "trace noclip grad_norm", "final weights clip (worst"}) {
    EXPECT_NE(done.out.find(check), std::string::npos) << check << " did not run:\n" << done.out;
  }
}

std::vector<std::string> references() {
  std::vector<std::string> found;
  for (const char* folder : {"tests/data/references", "../shared/oracles/models"}) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(test::source_path(folder), none)) {
      if (entry.is_directory()) {
        found.push_back(std::string(folder) + "/" + entry.path().filename().string());
      }
    }
  }
  std::ranges::sort(found);
  return found;
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, testing::ValuesIn(references()),
                         [](const auto& info) { return fs::path(info.param).filename().string(); });

class ParityLimits : public TrainerTest {};

// The limits are real: a checkpoint that is a little off must fail.
TEST_F(ParityLimits, AnotherNormEpsilonFails) {
  const fs::path folder = test::source_path("tests/data/references/small_qwen3");
  fs::create_directories(folder_ / "copy");
  fs::copy(folder, folder_ / "copy", fs::copy_options::recursive);
  const std::string config = path("copy/checkpoint/config.json");
  std::string text = content_of(config);
  const std::string epsilon = "\"rms_norm_eps\": 1e-06";
  ASSERT_NE(text.find(epsilon), std::string::npos);
  text.replace(text.find(epsilon), epsilon.size(), "\"rms_norm_eps\": 1e-05");
  fs::permissions(config, fs::perms::owner_all);
  std::ofstream(config) << text;
  const Finished done =
      shell(fmt::format("'{}/tandem' parity '{}'", test::bin_dir(), path("copy")));
  EXPECT_EQ(done.code, 1) << done.out << done.err;
  EXPECT_NE(done.out.find("FAIL"), std::string::npos) << done.out;
}

// A reference that does not fit its model is one line and exit code 2, whatever is wrong with it.
class DamagedReference : public TrainerTest {
 protected:
  struct Tensor {
    TensorPlan plan;
    std::string bytes;
  };
  using Tensors = std::map<std::string, Tensor>;

  void SetUp() override {
    TrainerTest::SetUp();
    fs::create_directories(copy_);
    for (const auto& entry : fs::directory_iterator(kWhole)) {
      if (entry.path().filename() == "checkpoint") {
        fs::copy(entry.path(), copy_ / "checkpoint");
      }
    }
  }

  /// The file of the reference, changed, is the only one beside the checkpoint, but for a
  /// losses.json with the trace that is given.
  void expect_refused(const std::string& file, const std::function<void(Tensors&)>& change,
                      const std::vector<std::string>& parts, const std::string& trace = "") {
    SCOPED_TRACE(fmt::format("{} {}", file, fmt::join(parts, ", ")));
    for (const char* name : {"logits.safetensors", "grads.safetensors", "batches.safetensors"}) {
      fs::remove(copy_ / name);
    }
    Tensors tensors = read(kWhole / file);
    change(tensors);
    write_tensors(copy_ / file, tensors);
    std::ofstream(copy_ / "losses.json")
        << R"({"traces": {"t": {"gradient_clipping": 1.0, )" << trace << "}}}";
    const Finished done =
        shell(fmt::format("'{}/tandem' parity '{}'", test::bin_dir(), copy_.string()));
    EXPECT_EQ(done.code, 2) << done.out << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(done.err, testing::HasSubstr(part));
    }
  }

  /// Gives a tensor another shape, cut or filled up with zeros.
  static std::function<void(Tensors&)> shaped(const std::string& name,
                                              const std::vector<std::int64_t>& shape) {
    return [name, shape](Tensors& tensors) {
      Tensor& tensor = tensors.at(name);
      tensor.plan.shape = shape;
      tensor.bytes.resize(tensor.plan.size_bytes(), '\0');
    };
  }

  static Tensors read(const fs::path& path) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    Tensors tensors;
    for (const TensorInfo& info : file.tensors()) {
      const auto bytes = file.bytes(info);
      tensors[info.name] = {{info.name, info.type, info.shape},
                            {reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
    }
    return tensors;
  }
  static void write_tensors(const fs::path& path, const Tensors& tensors) {
    std::vector<TensorPlan> plans;
    std::string bytes;
    for (const auto& [name, tensor] : tensors) {
      plans.push_back(tensor.plan);
      bytes += tensor.bytes;
    }
    std::ofstream(path, std::ios::binary) << safetensors_header(plans) << bytes;
  }

  const fs::path kWhole = fs::path(test::source_dir()) / "tests/data/references/small_gpt2";
  fs::path copy_ = fs::path(testing::TempDir()) / fmt::format("damaged reference {}", ::getpid());
  void TearDown() override {
    fs::remove_all(copy_);
    TrainerTest::TearDown();
  }
};

TEST_F(DamagedReference, Logits) {
  const std::string file = "logits.safetensors";
  const auto ids = read(kWhole / file).at("input_ids").plan.shape;
  const auto all = ids[0] * ids[1];
  expect_refused(file, shaped("input_ids", {all}), {"input_ids", "[rows, tokens]"});
  expect_refused(file, shaped("input_ids", {1, ids[0], ids[1]}), {"input_ids"});
  expect_refused(file, shaped("input_ids", {0, ids[1]}), {"attention_mask"});
  expect_refused(file, shaped("attention_mask", {4000, 64}), {"attention_mask", "[4000, 64]"});
  expect_refused(file, shaped("logits", {0}), {"logits has 0 values"});
  expect_refused(file, shaped("logits", {1}), {"logits has 1 values"});
}

TEST_F(DamagedReference, Gradients) {
  const std::string file = "grads.safetensors";
  const Tensors whole = read(kWhole / file);
  const auto ids = whole.at("input_ids").plan.shape;
  const std::string gradient = whole.lower_bound("grad.")->first;
  expect_refused(file, shaped("labels", {ids[0], 5 * ids[1]}), {"labels of a batch"});
  expect_refused(file, shaped("labels", {ids[0], 1}), {"labels of a batch"});
  expect_refused(file, shaped("loss", {0}), {"loss has 0 values"});
  expect_refused(file, shaped(gradient, {1'000'000}), {gradient, "1000000 values"});
  expect_refused(file, shaped(gradient, {0}), {gradient, "0 values"});
}

TEST_F(DamagedReference, Traces) {
  const std::string file = "batches.safetensors";
  const auto tokens = read(kWhole / file).at("tokens").plan.shape;
  const auto nothing = [](Tensors&) {};
  const std::string two = R"("loss": [[3.7, 3.7], [3.6, 3.7]], "grad_norm": [1, 1])";
  expect_refused(file, shaped("tokens", {tokens[2], tokens[3]}), {"tokens", "rows, tokens]"}, two);
  expect_refused(file, shaped("tokens", {1, tokens[1], tokens[2], tokens[3]}), {"more than 1"},
                 two);
  expect_refused(file, nothing, {"loss: it has no step"}, R"("loss": [], "grad_norm": [])");
  expect_refused(file, nothing, {"loss[0]", "0 numbers"}, R"("loss": [[]], "grad_norm": [1])");
  expect_refused(file, nothing, {"loss[1]", "0 numbers"},
                 R"("loss": [[1, 2], []], "grad_norm": [1, 1])");
  expect_refused(file, nothing, {"grad_norm", "0 numbers"}, R"("loss": [[1, 2]], "grad_norm": [])");
  expect_refused(file, nothing, {"loss_limit", "1 numbers, 2"}, two + R"(, "loss_limit": [1])");
}

}  // namespace
}  // namespace tandem
