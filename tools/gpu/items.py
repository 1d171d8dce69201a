"""The items of a GPU queue: what each runs in which order, its minutes, what it has to show, and its fallbacks.

Invariant: the most valuable step of an item comes first, since what does not fit into the item's time is left out at its end.
"""

import dataclasses
import json
import os
import random
from typing import Callable

from kit import Kit, Shape
from marks import at_least, fast, first_losses, hidden, predicted, steady
from steps import Await, Start, Step, await_adam, lines, pair_step, plan_step, sanitizer, start_adam, tests_step
from steps import trace_step, wheels_step, whole

TESTS = ("test_runtime", "test_actors", "test_engine", "test_models")
REAL = "*.Real*"
NEVER_CLIPS = "--clip=1000"  # random weights can pass a norm of 1 in each step, and then nothing is speculative
RECOMPUTED = "full/checkpointing"


@dataclasses.dataclass(frozen=True)
class Item:
    title: str
    seconds: int
    programs: tuple
    steps: Callable[[Kit], object]  # yields steps; it goes on after a step has ended
    passes: str
    falls_back: str


def prepared_peers(kit):
    """The peers' wheels, and CPUAdam being compiled beside the steps that measure nothing."""
    yield wheels_step(kit)
    if kit.compiles_adam():
        yield start_adam(kit)


def headline(kit):
    shape = kit.asked.or_else(model="qwen3_4b", rows=4, length=4096, steps=10)
    theirs = dataclasses.replace(shape, steps=4)
    yield from prepared_peers(kit)
    yield tests_step(kit, "test_actors", 60, REAL)
    yield tests_step(kit, "test_engine", 90, REAL)
    yield plan_step(kit, shape, "--placement", "cpu")
    yield plan_step(kit, shape)
    if kit.compiles_adam():
        yield await_adam(kit, 60)

    def deepspeed(*flags):
        return kit.peer("superoffload", theirs, 2, "--limit", "140", *flags)

    quiet = "--no-sdpa-probe"
    super_offload, zero_offload = "SuperOffload, no clipping", "ZeRO-Offload, clipping"
    ratio = "DeepSpeed, ratio 0.2, Liger"
    sides = {
        "tandem cpu": kit.ours(shape, RECOMPUTED, "--placement=cpu", NEVER_CLIPS),
        super_offload: deepspeed("--mode", "super", "--clip", "off"),
        zero_offload: deepspeed("--mode", "offload", "--clip", "high", quiet),
        "tandem auto": kit.ours(shape, RECOMPUTED, "--placement=auto", NEVER_CLIPS),
        "SuperOffload, clipping": deepspeed("--mode", "super", "--clip", "high", quiet),
        ratio: deepspeed("--mode", "offload", "--ratio", "0.2", "--liger", "--clip", "off", quiet),
        "ZeRO-Offload, no clipping": deepspeed("--mode", "offload", "--clip", "off", quiet),
    }
    on_host = [side for side in sides if side.startswith(("Super", "Zero"))]
    marks = (at_least("tandem cpu", 1.5, *on_host), at_least("tandem auto", 1.5, *on_host, ratio), steady("tandem cpu", 5),
             hidden("tandem auto", 10), first_losses(11.7, 12.3))
    title = f"Q1 {shape.model} {shape.rows}x{shape.length}"
    yield pair_step(kit, title, 540, sides, marks, order="1,2,3,4,5,1,6,7,2", limit=150)


def truth(kit):
    small = Shape("qwen3_0.6b", 8, 1024, 20)
    ours = kit.ours(small, "full")
    yield tests_step(kit, "test_models", 60, REAL)
    yield trace_step(kit, "0.6B 8x1024", 800, ours)
    yield trace_step(kit, "0.6B 8x128", 500, kit.ours(dataclasses.replace(small, length=128), "full"))
    for program in TESTS[:3]:
        yield tests_step(kit, program, 60, REAL)
    for tool in ("memcheck", "racecheck"):
        yield tests_step(kit, "test_models", 60, "*Kernels*.Real*", sanitizer(tool))
    sides = {"as it is": ours, "state on the GPU": kit.ours(small, "full", "--placement=gpu")}
    for flag, value in (("stage", 1), ("gather_slots", 40), ("inflight_buckets", 40)):
        sides[f"{flag} {value}"] = kit.ours(small, "full", f"--{flag}={value}")
    yield pair_step(kit, "Q2 switches", 90, sides, rounds=2, limit=40, least=15)
    kernels = "regex:turn_heads|norm_rows|take_losses|update_elements|flash_bwd"
    watch = [kit.find("ncu") or "ncu", "--target-processes", "all", "--section", "SpeedOfLight", "--clock-control", "none",
             "-k", kernels, "-s", "200", "-c", "8"]
    watched = kit.ours(dataclasses.replace(small, steps=1), "full")
    yield Step("ncu", 60, [*watch, kit.starter(watched[0]), *watched[1:]],
               lines(r"Duration|Throughput|^  [a-z_A-Z].*\("), absent=kit.why_not("ncu"))


def fair_pair(kit):
    yield wheels_step(kit)
    small = Shape("qwen3_0.6b", 8, 1024, 30)

    def loop(mode, *flags, shape=small, warmup=5, state=None, real=False):
        which = ["--mode", mode, "--clip", "1", *(["--state", state] if state else []), *flags]
        return kit.peer("torch", shape, warmup, *which, real=real)

    exact, quick, keep = "compile + Liger, fp32 state", "compile + Liger, bf16 state", "--no-checkpointing"
    few = dataclasses.replace(small, steps=15)
    sides = {
        "tandem": kit.ours(small, "full"),
        exact: loop("compile-liger", keep, state="fp32"),
        quick: loop("compile-liger", keep, state="bf16"),
        "compile, bf16 state": loop("compile", keep, state="bf16"),
        "eager, bf16 state": loop("eager", keep, shape=few, warmup=3, state="bf16", real=True),
        "FSDP2 + compile + Liger": loop("fsdp2", "--compile", "--liger", keep),
        "tandem, overlap off": kit.ours(small, "off"),
    }
    yield pair_step(kit, "Q3 Qwen3-0.6B 8x1024", 240, sides, (at_least("tandem", 1.3, exact), at_least("tandem", 1.0, quick)),
                    order="1,2,3,1,2,3,4,5,6,7,1,2,3", limit=90)
    large = Shape("qwen3_4b", 4, 1024, 15)
    slow = dataclasses.replace(large, steps=3)
    sides = {
        "tandem": kit.ours(large, RECOMPUTED),
        quick: loop("compile-liger", shape=large, warmup=4, state="bf16"),
        "FSDP2, AdamW on the host": loop("fsdp2-offload", "--compile", "--liger", shape=slow, warmup=2),
    }
    yield pair_step(kit, "Q3 Qwen3-4B 4x1024, recomputed", 160, sides, (at_least("tandem", 1.0, quick),),
                    order="1,2,1,2,3", limit=90)


def larger_than_the_gpu(kit):
    models = [kit.asked.model] if kit.asked.model else ["llama31_8b", "qwen3_8b"]
    shapes = [kit.asked.or_else(model=model, rows=4, length=4096, steps=5) for model in models]
    shapes = [dataclasses.replace(shape, model=model) for shape, model in zip(shapes, models)]
    yield from prepared_peers(kit)
    for shape in shapes:
        yield plan_step(kit, shape)
    if kit.compiles_adam():
        yield await_adam(kit, 90)
    sides = {f"tandem {shape.model}": kit.ours(shape, RECOMPUTED, "--placement=auto", NEVER_CLIPS) for shape in shapes}
    marks = [mark for side in sides for mark in (fast(side, 5500), predicted(side, 20))]
    theirs = dataclasses.replace(shapes[-1], steps=2)
    flags = ["--mode", "offload", "--ratio", "0.75", "--liger", "--clip", "off", "--limit", "120", "--min-host-gib", "6",
             "--no-sdpa-probe"]
    sides["ZeRO-Offload, ratio 0.75, not pinned"] = kit.peer("superoffload", theirs, 1, *flags, "--no-pin")
    sides["ZeRO-Offload, ratio 0.75"] = kit.peer("superoffload", theirs, 1, *flags)
    yield pair_step(kit, "Q4 8B", 370, sides, tuple(marks), limit=150)


def largest(kit):
    shape = kit.asked.or_else(model="qwen3_14b", rows=2, length=4096, steps=4)
    bf16_moments = "--optimizer_state=bf16"
    yield plan_step(kit, shape)
    yield plan_step(kit, shape, bf16_moments)
    sides = {"exact": kit.ours(shape, RECOMPUTED, "--placement=auto", NEVER_CLIPS),
             "moments in bf16": kit.ours(shape, RECOMPUTED, "--placement=auto", NEVER_CLIPS, bf16_moments)}
    marks = (fast("exact", 3500), predicted("exact", 20), predicted("moments in bf16", 20))
    yield pair_step(kit, f"Q5 {shape.model}", 410, sides, marks, limit=240)


def overlap(kit):
    links = [kit.python, kit.tool("links.py")]
    fake = ["--stand-in"] if kit.rehearse else []
    yield Step("links", 40, [*links, "4", *fake], lines("GB/s"))
    elements = 1_000_000 if kit.rehearse else 200_000_000
    iterations = ["--iterations=1"] if kit.rehearse else []
    adam = ["bench_adam", f"--elements={elements}", f"--threads={max(1, (os.cpu_count() or 2) - 1)}", *iterations,
            "--benchmark_filter=^(ceiling|adam|adam_apart)/bf16/"]
    yield Step("Adam, links idle", 40, adam, lines("^(ceiling|adam)"))
    yield Start("traffic", [*links, "55", "--traffic", *fake])
    yield Step("the traffic begins", 10, ["sleep", "0" if kit.rehearse else "6"], whole)
    yield Step("Adam, both links busy", 40, adam, lines("^(ceiling|adam)"))
    yield Await("traffic", 0, True, whole)
    # A rehearsal lists the cases: on two cores the shortest takes a minute.
    bench = ["bench_overlap", f"--device={kit.device}", *(["--benchmark_list_tests"] if kit.rehearse else [])]
    yield Step("overlap full/1", 80, [*bench, "--benchmark_filter=engine/full/1/"], lines("^engine/"))
    yield Step("overlap off, full", 200, [*bench, "--benchmark_filter=engine/(off|full)/"], lines("^engine/"))


WORDS = "the ship sails over a cold bright sea and no sailor asks where it will go before winter".split()


def write_records(path, count):
    """Instructions with answers of 60 to 320 words, about 500 tokens each: the same in each run."""
    dice = random.Random(0)
    answers = (" ".join(dice.choices(WORDS, k=dice.randint(60, 320))) for _ in range(count))
    records = [{"instruction": "Tell it.", "input": "", "output": answer} for answer in answers]
    path.write_text(json.dumps(records), encoding="utf-8")


def other_shapes(kit):
    experts = Shape("qwen3_30b_a3b_8_layers", 4, 2048, 8)
    yield trace_step(kit, "MoE of 8 layers 4x2048", 800, kit.ours(experts, RECOMPUTED))
    model, data = kit.scratch / "model", kit.scratch / "data.json"
    kit.scratch.mkdir(parents=True, exist_ok=True)
    write_records(data, 50 if kit.rehearse else 3000)
    yield Step("a 0.6B with random weights", 60, ["make_model", "--config", kit.config("qwen3_0.6b"), "--dtype", "bfloat16",
               "--tokenizer", "examples/demo", "--output", str(model)], lines("parameters"))
    rows, length, steps = ("1", "512", "2") if kit.rehearse else ("4", "4096", "14")
    tune = ["finetune_zero3", "--model_name", str(model), "--dataset_name", str(data), "--device", kit.device, "--dtype", "bf16",
            "--lr", "1e-5", "--batch_size", rows, "--max_length", length, "--loss_on", "all", "--steps", steps, "--no-samples",
            "--summary_skip", "0" if kit.rehearse else "4", "--progress", "off", "--activation_checkpointing", "--packing", "bfd"]
    said = lines("tokens|step|memory|loss")
    yield Step(f"packed rows {rows}x{length}", 80, [*tune, "--output_dir", str(kit.scratch / "packed")], said)
    full = kit.ours(Shape("qwen3_0.6b", 4, 4096, 10), RECOMPUTED)
    documents = f"--document_length={16 if kit.rehearse else 500}"
    yield pair_step(kit, "Q7 packed and full rows", 90, {"full rows": full, "packed rows": [*full, documents]},
                    (at_least("packed rows", 0.9, "full rows"),), limit=55, least=15)
    yield Step("LoRA of rank 16, packed", 60, [*tune, "--lora_r", "16", "--lora_targets", "all-linear", "--output_dir",
               str(kit.scratch / "lora")], said)
    yield tests_step(kit, "test_models", 40, "*ttention*Real*")


BENCH = ("bench_step",)
ITEMS = {
    "Q1": Item(
        "headline: a model whose optimizer lies on the host, beside DeepSpeed's two", 580,
        (*BENCH, "test_actors", "test_engine", "tandem"), headline,
        "The tests pass; all marks are met; losses are finite.",
        "--length 2048; --model qwen3_1.7b; where DeepSpeed fails, our rows and its compiler's output"),
    "Q2": Item(
        "truth: tests, traces, sanitizers, switches", 360, (*BENCH, *TESTS), truth,
        "All tests pass, with 0 errors and 0 hazards. Traced tokens/s are at least 95 % of those of \"as it is\". "
        "The record names each kernel over 2 % of the window, and each kind of gap over 1 %.",
        "where a kernel refuses the sanitizers and ncu, they are left out by themselves"),
    "Q3": Item(
        "fair pair: beside PyTorch's own loops, all on the GPU", 420, BENCH, fair_pair,
        "The marks are met; the record has each peer's sdpa.", "where Liger fails, the compiled loop is the pair"),
    "Q4": Item(
        "larger than the GPU: models of 8 billion parameters", 400, (*BENCH, "tandem"), larger_than_the_gpu,
        "Both end. GPU and host GiB lie within 10 % of the plan's. Where DeepSpeed has no figure, its error is the result.",
        "--rows 2; --model qwen3_8b"),
    "Q5": Item(
        "the largest exact model of one H200 and its host", 430, (*BENCH, "tandem"), largest,
        "It ends, and its memory lies within 10 % of the plan's.", "--length 2048; --rows 1"),
    "Q6": Item(
        "overlap: links, Adam beside traffic, the schedule", 330, ("bench_adam", "bench_overlap", *BENCH), overlap,
        "full hides at least .95 up to t = .5 and .85 at 1; Adam loses at most 15 % to the traffic.", "overlap full/1 alone"),
    "Q7": Item(
        "other shapes: experts, packed rows, LoRA", 360, (*BENCH, "make_model", "finetune_zero3", "test_models"), other_shapes,
        "The mark is met; LoRA ends; the trace names the kernels of the experts.", "the trace of the experts alone"),
}
PROGRAMS = sorted({program for item in ITEMS.values() for program in item.programs})
