// cifar10 and cifar10_tutorial as a user runs them: their lines, artefacts, flags and refusals.
#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "actors/storage/safetensors.hpp"
#include "models/cifar/net.hpp"
#include "tests/examples/trainer_fixture.hpp"
#include "tests/support/process/paths.hpp"
#include "trainer/cifar/accuracy.hpp"
#include "trainer/cifar/png.hpp"
#include "trainer/cifar/report.hpp"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Cifar : public TrainerTest {
 protected:
  [[nodiscard]] Finished cifar(const std::string& flags) const {
    return shell(
        fmt::format("TANDEM_CACHE='{}' '{}/cifar10' {}", path("no cache"), test::bin_dir(), flags));
  }
  [[nodiscard]] Finished run(const std::string& output, const std::string& flags) const {
    return cifar(fmt::format("--dtype fp32 --stage 3 --no-tensorboard --output_dir '{}' {}",
                             path(output), flags));
  }
  [[nodiscard]] Finished tutorial(const std::string& flags) const {
    return shell(fmt::format("TANDEM_CACHE='{}' '{}/cifar10_tutorial' {}", path("no cache"),
                             test::bin_dir(), flags));
  }
  /// Eight fp32 steps whose four micro-batches `count` ranks share.
  void run_on_ranks(int count, const std::string& output, const std::string& flags) const {
    const Finished done = shell(fmt::format(
        "TANDEM_CACHE='{}' '{}/tandem' launch -n {} -- '{}/cifar10' --dtype fp32 --steps 8 "
        "--gradient_accumulation_steps {} --no-tensorboard --output_dir '{}' {}",
        path("no cache"), test::bin_dir(), count, test::bin_dir(), 4 / count, path(output), flags));
    EXPECT_EQ(done.code, 0) << done.out << done.err;
    EXPECT_THAT(done.out, HasSubstr("Accuracy of the network on the 2000 test images"));
  }
  void expect_same_run(const std::string& output, const std::string& expected) const {
    SCOPED_TRACE(output);
    expect_same_digits(output, expected);
    EXPECT_EQ(column(output, "loss").size(), 8U);
    EXPECT_EQ(column(output, "tokens"), column(expected, "tokens"));
    EXPECT_TRUE(content_of(folder_ / output / "predictions.png") ==
                content_of(folder_ / expected / "predictions.png"));
  }
  void expect_refused(const Finished& done, const std::vector<std::string>& parts) const {
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_TRUE(done.err.starts_with("error: [")) << done.err;
    EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
    for (const std::string& part : parts) {
      EXPECT_THAT(done.err, HasSubstr(part));
    }
    EXPECT_FALSE(fs::exists(folder_ / "out"));
  }
};

TEST_F(Cifar, LearnsTheGeneratedSetAndLeavesEveryArtefact) {
  const Finished done = cifar(
      fmt::format("--dtype fp32 --stage 3 --epochs 2 --log-interval 200 --trace --output_dir '{}'",
                  path("run")));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("generated shapes"));
  EXPECT_THAT(done.out, ContainsRegex("\n\\[ 1,   200\\] loss:  [0-9]\\.[0-9][0-9][0-9]\n"));
  EXPECT_THAT(done.out, ContainsRegex("\n\\[ 2,   600\\] loss:  [0-9]\\.[0-9][0-9][0-9]\n"));
  EXPECT_THAT(done.out,
              HasSubstr("\nFinished Training\nAccuracy of the network on the 2000 test images:  "));
  EXPECT_THAT(done.out, ContainsRegex("\nAccuracy of plane :  +[0-9]+ %\nAccuracy of   car :  +"));
  EXPECT_EQ(done.out.find("Step "), std::string::npos) << "the example has no such lines";
  for (const char* name : {"metrics.jsonl", "summary.json", "resolved_config.json", "trace.json.gz",
                           "report.html", "predictions.png", "model/model.safetensors"}) {
    EXPECT_TRUE(fs::exists(folder_ / "run" / name)) << name;
  }
  EXPECT_EQ(column("run", "loss").size(), 1250U);
  ASSERT_EQ(column("run", "eval_loss").size(), 2U);  // after each epoch
  EXPECT_LT(std::stod(column("run", "eval_loss")[1]), std::stod(column("run", "eval_loss")[0]));
  EXPECT_EQ(column("run", "eval_tokens")[0], "2000");
  simdjson::dom::parser parser;
  const simdjson::dom::object summary = parser.load(path("run/summary.json"));
  EXPECT_LT(double(summary["loss_last"]), 0.7 * double(summary["loss_first"]));
  EXPECT_GT(double(summary["tokens_per_s"]), 0);
  const std::size_t at = done.out.find("test images: ");
  EXPECT_GT(std::stod(done.out.substr(at + 13)), 60) << done.out;
}

TEST_F(Cifar, SchedulesThreadsWorkersDoNotChangeOneDigit) {
  ASSERT_EQ(run("off", "--steps 12 --overlap off").code, 0);
  const auto losses = column("off", "loss");
  ASSERT_EQ(losses.size(), 12U);
  const std::string weights = content_of(folder_ / "off/model/model.safetensors");
  int number = 0;
  for (const char* flags : {"--overlap comm", "--overlap offload --workers 4 --prefetch 9",
                            "--optimizer_threads 2 --workers 2", "--compute_threads 1"}) {
    const std::string output = fmt::format("run{}", number++);
    const Finished done = run(output, fmt::format("--steps 12 {}", flags));
    ASSERT_EQ(done.code, 0) << flags << ": " << done.err;
    EXPECT_EQ(column(output, "loss"), losses) << flags;
    EXPECT_TRUE(content_of(folder_ / output / "model/model.safetensors") == weights) << flags;
  }
  ASSERT_EQ(run("other", "--steps 12 --seed 1").code, 0);
  EXPECT_NE(column("other", "loss"), losses);
}

TEST_F(Cifar, StagesDoNotChangeOneDigit) {
  ASSERT_EQ(run("stage3", "--steps 12").code, 0);
  for (const int stage : {0, 1, 2}) {
    const std::string output = fmt::format("stage{}", stage);
    const Finished done =
        cifar(fmt::format("--dtype fp32 --stage {} --steps 12 --no-tensorboard --output_dir '{}'",
                          stage, path(output)));
    ASSERT_EQ(done.code, 0) << done.err;
    expect_same_digits(output, "stage3");
  }
}

// The same micro-batches of 4, dealt to one, two and four ranks.
TEST_F(Cifar, RanksDoNotChangeOneDigit) {
  run_on_ranks(1, "alone", "--stage 0");
  for (const auto& [count, stage] : {std::pair{2, 0}, std::pair{2, 3}, std::pair{4, 2}}) {
    const std::string output = fmt::format("{} ranks, stage {}", count, stage);
    run_on_ranks(count, output, fmt::format("--stage {}", stage));
    expect_same_run(output, "alone");
  }
}

TEST_F(Cifar, ExpertsOverRanksDoNotChangeOneDigit) {
  const std::string moe =
      "--moe --num-experts 2 4 --mlp-type residual --noisy-gate-policy RSample --moe-param-group "
      "--moe-aux-loss-coef 0.01 ";
  run_on_ranks(1, "alone", moe + "--stage 0 --overlap off");
  for (const int stage : {0, 2, 3}) {
    const std::string output = fmt::format("stage {}", stage);
    run_on_ranks(2, output, fmt::format("{} --stage {} --ep-world-size 2", moe, stage));
    expect_same_run(output, "alone");
  }
}

TEST_F(Cifar, TheExamplesDefaultsAreFp16AndStage0WithItsLossScale) {
  const Finished done = cifar(fmt::format("--steps 40 --output_dir '{}'", path("run")));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr("fp16, ZeRO stage 0"));
  EXPECT_EQ(column("run", "loss_scale").front(), "32768");
  EXPECT_EQ(column("run", "lr").at(2), "0.00010034333188799373");  // WarmupLR's third step
  ASSERT_EQ(run("exact", "--steps 40").code, 0);
  const auto rounded = column("run", "loss");
  const auto exact = column("exact", "loss");
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_NEAR(std::stod(rounded[i]), std::stod(exact[i]), 5e-3) << "step " << i + 1;
  }
}

TEST_F(Cifar, TheSixteenBitTypesTheConfigFileAndAccumulation) {
  ASSERT_EQ(cifar(fmt::format("--dtype bf16 --steps 3 --output_dir '{}'", path("b"))).code, 0);
  const std::string config = write("ds.json", R"({
    "train_batch_size": 12, "gradient_accumulation_steps": 3, "zero_optimization": {"stage": 3},
    "optimizer": {"type": "Adam", "params": {"lr": 0.002}}})");
  const Finished done = cifar(fmt::format(
      "--deepspeed --deepspeed_config '{}' --steps 3 --output_dir '{}'", config, path("file")));
  ASSERT_EQ(done.code, 0) << done.err;  // the example's --dtype fp16 is a default, not a wish
  EXPECT_THAT(done.out, HasSubstr("fp32, ZeRO stage 3"));
  EXPECT_THAT(done.out, HasSubstr("12 = 4 per micro-batch x 3 accumulation"));
  EXPECT_EQ(column("file", "lr"), (std::vector<std::string>{"0.002", "0.002", "0.002"}));
  EXPECT_EQ(column("file", "tokens"), (std::vector<std::string>{"12", "12", "12"}));
}

TEST_F(Cifar, MixturesOfExpertsTrainTheSameAtEveryStage) {
  const std::string moe =
      "--moe --num-experts 2 4 --mlp-type residual --noisy-gate-policy RSample --moe-param-group "
      "--moe-aux-loss-coef 0.01 --dtype fp32 --steps 8 --no-tensorboard";
  const auto losses = [&](const std::string& output, const std::string& flags) {
    const Finished done = cifar(fmt::format("{} {} --output_dir '{}'", moe, flags, path(output)));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.out, HasSubstr("Accuracy of the network"));
    return column(output, "loss");
  };
  const std::vector<std::string> expected = losses("0", "--stage 0 --overlap off");
  EXPECT_EQ(expected.size(), 8U);
  EXPECT_EQ(losses("3", "--stage 3"), expected);
  // Training goes on from the saved weights.
  const std::string weights = path("3") + "/model/model.safetensors";
  const SafetensorsFile saved = SafetensorsFile::open(weights);
  for (const char* name : {"moe_layer_list.1.deepspeed_moe.gate.wg.weight",
                           "moe_layer_list.1.deepspeed_moe.experts.deepspeed_experts.3.bias",
                           "moe_layer_list.0.mlp.weight", "moe_layer_list.1.coefficient.bias"}) {
    EXPECT_NE(saved.find(name), nullptr) << name;
  }
  EXPECT_EQ(losses("from", "--stage 2 --init_weights '" + weights + "'").size(), 8U);
}

TEST_F(Cifar, FlagsThatCannotBe) {
  const auto refused = [&](const std::string& flags, const std::vector<std::string>& parts) {
    expect_refused(cifar(fmt::format("--output_dir '{}' {}", path("out"), flags)), parts);
  };
  refused("--moe --num-experts 2 --ep-world-size 2",
          {"--ep-world-size is 2", "world size is 1", "divisor"});
  refused("--moe --num-experts 4 3 --ep-world-size 2", {"3 experts", "mixture 1", "2 ranks"});
  refused("--ep-world-size 2", {"--ep-world-size", "--moe"});
  refused("--moe --ep-world-size 0", {"--ep-world-size"});
  refused("--moe --num-experts 4 2 --top-k 3", {"top-k is 3", "2 experts", "use 1 to 2"});
  refused("--moe-param-group", {"--moe-param-group", "--moe"});
  refused("--mlp-type square", {"--mlp-type", "square", "residual"});
  refused("--moe --top-k 0", {"top-k is 0", "use 1"});
  refused("--noisy-gate-policy Loud", {"Loud", "RSample"});
  refused("--epochs 0", {"--epochs"});
  refused("--epoch 3", {"--epoch", "--epochs"});
  refused("--workers 0", {"--workers"});
  refused("--dtype fp8", {"--dtype", "fp8"});
  refused("--data_dir '" + path("nowhere") + "'", {"nowhere", "data_batch_1"});
  refused("--init_weights '" + path("nowhere") + "'", {"nowhere"});
  refused("--dtype bf16 --deepspeed_config '" +
              write("c.json", R"({"train_batch_size": 16, "bf16": {"enabled": false}})") + "'",
          {"--dtype", "bf16.enabled"});
}

TEST_F(Cifar, PartsOfAnEpochAreTrained) {
  EXPECT_EQ(run("part", "--epochs 0.02").code, 0);  // an epoch has 625 steps
  EXPECT_EQ(column("part", "loss").size(), 13U);
  EXPECT_EQ(tutorial("--epochs 0.001 --output_dir '" + path("plain") + "'").code, 0);  // 2500 steps
  EXPECT_EQ(std::ranges::count(content_of(folder_ / "plain/losses.jsonl"), '\n'), 3);
}

TEST_F(Cifar, DamagedDataIsOneLine) {
  std::string records(3073 * 20, '\1');
  write("data/test_batch.bin", records);
  write("data/data_batch_1.bin", records.substr(0, 3073 * 20 - 1));
  const std::string flags =
      fmt::format("--data_dir '{}' --output_dir '{}' --steps 1", path("data"), path("out"));
  expect_refused(cifar(flags), {"data_batch_1.bin", "61459"});
  records[3073 * 7] = 17;
  write("data/data_batch_1.bin", records);
  expect_refused(cifar(flags), {"record 7", "label 17"});
  expect_refused(tutorial(flags), {"record 7", "label 17"});
}

TEST_F(Cifar, ANameOfDataCannotSteerTheTerminal) {
  const std::string records(3073 * 20, '\1');
  const std::string folder = "da\x1b[2Jta";
  write(folder + "/test_batch.bin", records);
  write(folder + "/data_batch_1.bin", records);
  const Finished done = tutorial(fmt::format(
      "--data_dir '{}' --output_dir '{}' --batch_size 4 --steps 1", path(folder), path("out")));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("da\\x1b[2Jta"), Not(HasSubstr("\x1b[2J"))));
}

// ---- accuracy

CifarImages numbered(std::int64_t count) {
  CifarImages images;
  images.pixels.resize(static_cast<std::size_t>(count * kCifarPixels));
  for (std::int64_t i = 0; i < count; ++i) {
    images.pixels[static_cast<std::size_t>(i * kCifarPixels)] = static_cast<std::uint8_t>(i % 7);
    images.labels.push_back(static_cast<std::uint8_t>(i % 10));
  }
  return images;
}

/// Names the class that the first pixel says: right where i % 7 == i % 10.
at::Tensor first_pixel_logits(const at::Tensor& images) {
  const at::Tensor pixel = ((images.flatten(1).select(1, 0) + 1) * 127.5).round().to(at::kLong);
  return at::one_hot(pixel, kCifarClasses).to(at::kFloat);
}

TEST(Accuracy, PerClassForEveryBatchSizeAndNumberOfRanks) {
  const CifarImages images = numbered(103);
  const ClassCounts whole = count_share(first_pixel_logits, images, {}, 4);
  EXPECT_EQ(whole.all(), 103);
  for (std::size_t c = 0; c < 10; ++c) {
    std::int64_t correct = 0;
    std::int64_t total = 0;
    for (std::int64_t i = static_cast<std::int64_t>(c); i < 103; i += 10) {
      ++total;
      correct += i % 7 == static_cast<std::int64_t>(c) ? 1 : 0;
    }
    EXPECT_EQ(whole.correct[c], correct) << c;
    EXPECT_EQ(whole.total[c], total) << c;
  }
  for (const std::int64_t batch : {1, 10, 64, 500}) {
    for (const int world : {1, 2, 3, 4}) {
      ClassCounts sum;
      std::size_t asked = 0;
      std::vector<std::size_t> batches;
      for (int rank = 0; rank < world; ++rank) {
        asked = 0;
        const ClassCounts mine = count_share(
            [&](const at::Tensor& x) {
              ++asked;
              return first_pixel_logits(x);
            },
            images, {.rank = rank, .world_size = world}, batch);
        batches.push_back(asked);
        for (std::size_t c = 0; c < 10; ++c) {
          sum.correct[c] += mine.correct[c];
          sum.total[c] += mine.total[c];
        }
      }
      EXPECT_EQ(sum.correct, whole.correct) << batch << " " << world;
      EXPECT_EQ(sum.total, whole.total) << batch << " " << world;
      EXPECT_EQ(std::ranges::count(batches, batches.front()), world) << "ranks ask equally often";
    }
  }
}

TEST(Accuracy, CountsOfAllRanksAreAddedUp) {
  ClassCounts mine;
  mine.add(3, 3);
  mine.add(3, 4);
  mine.add(9, 9);
  const ClassCounts twice = sum_over_ranks(mine, [](std::vector<double> numbers) {
    for (double& number : numbers) {
      number *= 2;
    }
    return numbers;
  });
  EXPECT_EQ(twice.correct[3], 2);
  EXPECT_EQ(twice.total[3], 4);
  EXPECT_EQ(twice.correct[9], 2);
  EXPECT_EQ(twice.all(), 6);
}

TEST(Accuracy, TheExamplesLines) {
  ClassCounts counts;
  counts.total.fill(200);
  counts.correct.fill(120);
  counts.correct[1] = 9;
  const auto lines = example_accuracy_lines(counts);
  ASSERT_EQ(lines.size(), 11U);
  // Python's output for f"{2000} test images: {54.45 : .0f} %" and f"{'car' : >5s} : {4.5 : 2.0f}
  // %".
  EXPECT_EQ(lines[0], "Accuracy of the network on the 2000 test images:  54 %");
  EXPECT_EQ(lines[1], "Accuracy of plane :  60 %");
  EXPECT_EQ(lines[2], "Accuracy of   car :  4 %");
  EXPECT_EQ(example_loss_line(0, 1999, 2.2134), "[ 1,  2000] loss:  2.213");
  EXPECT_EQ(tutorial_loss_line(0, 1999, 2.2134), "[1,  2000] loss: 2.213");
  EXPECT_EQ(tutorial_accuracy_lines(counts)[2], "Accuracy of   car :  4 %");
}

TEST(Accuracy, RunningLossStartsAnewWithEachEpoch) {
  RunningLoss running(2);
  EXPECT_FALSE(running.add(0, 0, 1));
  EXPECT_TRUE(running.add(0, 1, 3));
  EXPECT_EQ(running.mean(), 2);
  EXPECT_FALSE(running.add(0, 2, 100));  // the epoch's rest is not reported
  EXPECT_FALSE(running.add(1, 0, 5));
  EXPECT_TRUE(running.add(1, 1, 7));
  EXPECT_EQ(running.mean(), 6);
}

// ---- images

class Png : public TrainerTest {};

constexpr std::string_view kDecode = R"(
import struct, sys, zlib
raw = open(sys.argv[1], "rb").read()
assert raw[:8] == b"\x89PNG\r\n\x1a\n"
at, data, header = 8, b"", None
while at < len(raw):
    length, kind = struct.unpack(">I4s", raw[at : at + 8])
    body = raw[at + 8 : at + 8 + length]
    assert zlib.crc32(kind + body) == struct.unpack(">I", raw[at + 8 + length : at + 12 + length])[0], kind
    if kind == b"IHDR": header = struct.unpack(">IIBBBBB", body)
    if kind == b"IDAT": data += body
    at += 12 + length
assert kind == b"IEND"
width, height, depth, colour, *rest = header
assert (depth, colour, rest) == (8, 2, [0, 0, 0])
rows = zlib.decompress(data)
assert len(rows) == height * (1 + 3 * width)
pixels = b"".join(rows[y * (1 + 3 * width) + 1 : (y + 1) * (1 + 3 * width)] for y in range(height))
assert all(rows[y * (1 + 3 * width)] == 0 for y in range(height))
open(sys.argv[2], "wb").write(struct.pack("<II", width, height) + pixels)
try:
    from PIL import Image
    assert Image.open(sys.argv[1]).convert("RGB").tobytes() == pixels
except ImportError:
    pass
)";

TEST_F(Png, PythonDecodesTheSamePixels) {
  Canvas canvas(37, 11, {1, 2, 3});
  canvas.set(36, 10, {250, 251, 252});
  canvas.set(99, 0, {9, 9, 9});
  canvas.write(0, 0, "cat", {200, 0, 0});
  write_png(path("a.png"), canvas);
  const std::string script = write("decode.py", kDecode);
  const Finished done =
      shell(fmt::format("python3 '{}' '{}' '{}'", script, path("a.png"), path("pixels")));
  ASSERT_EQ(done.code, 0) << done.err;
  const std::string expected(canvas.pixels().begin(), canvas.pixels().end());
  EXPECT_EQ(content_of(path("pixels")), std::string("\x25\0\0\0\x0b\0\0\0", 8) + expected);
}

TEST_F(Png, TheGridShowsImagesLabelsAndAnswers) {
  CifarImages images = numbered(40);
  std::fill(images.pixels.begin(), images.pixels.end(), std::uint8_t{77});
  const ImageLogits always_cat = [](const at::Tensor& x) {
    at::Tensor logits = at::zeros({x.size(0), kCifarClasses});
    logits.select(1, 3).fill_(1);
    return logits;
  };
  write_predictions(path("grid.png"), images, always_cat);
  const std::string script = write("decode.py", kDecode);
  ASSERT_EQ(
      shell(fmt::format("python3 '{}' '{}' '{}'", script, path("grid.png"), path("pixels"))).code,
      0);
  const std::string raw = content_of(path("pixels")).substr(8);
  std::int64_t grey = 0;
  std::int64_t green = 0;
  std::int64_t red = 0;
  for (std::size_t at = 0; at + 2 < raw.size(); at += 3) {
    const auto r = static_cast<unsigned char>(raw[at]);
    const auto g = static_cast<unsigned char>(raw[at + 1]);
    grey += r == 77 && g == 77 ? 1 : 0;
    green += r == 0 && g > 100 ? 1 : 0;
    red += r > 150 && g < 100 ? 1 : 0;
  }
  EXPECT_EQ(grey, 32 * 64 * 64);
  EXPECT_GT(green, 0);
  EXPECT_GT(red, 5 * green);  // 3 of 32 labels are cats
}

// ---- the plain loop

TEST_F(Cifar, TheTutorialLearnsTheGeneratedSet) {
  const Finished done = tutorial("--steps 1500 --lr 0.003 --log-interval 250 --compute_threads 1");
  ASSERT_EQ(done.code, 0) << done.err;
  const auto loss_at = [&](const std::string& head) {
    const std::size_t at = done.out.find(head);
    return at == std::string::npos ? -1 : std::stod(done.out.substr(at + head.size()));
  };
  EXPECT_GT(loss_at("[1,  1500] loss: "), 0) << done.out;
  EXPECT_LT(loss_at("[1,  1500] loss: "), 0.7 * loss_at("[1,   250] loss: ")) << done.out;
}

}  // namespace
}  // namespace tandem
