#!/usr/bin/env python3
"""How the costs of a training step grow as its work grows, on this machine.

    ./tandem bench scaling [--axes parameters length ranks experts accumulation] [--plot F.svg] [--json F.json] [--tiny]
    ./tandem bench scaling --simulate ...    8 to 4,096 ranks in virtual time: bench_scaling

Along each axis one size grows and all others stay. Every point is a run of finetune_zero3 on a model with random weights, fp32.
Three costs of its steps (medians, warm-up left out), each beside what should make it grow:
  step        the step's time, beside the FLOPs of all ranks (2 for each weight and token and 4 x width x length for each
              token's attention, three times; experts as far as a token takes them), since ranks share the machine's cores
  memory      the most that a rank had resident, beside what the memory plan predicts
  exposed     time for which compute stood still for gathers, reductions and updates, beside the bytes that these move: an
              update's 28 of an element of the slice, and for each micro-step two gathers' and a reduction's 4 of every element
A slope is that of the straight line through the points' logarithms: 1 where the cost doubles with the size. A hidden cost has
no slope: nothing can be said of exposed times below a hundredth of the step.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from memory_plan import DEMO, write_data  # noqa: E402
from svg import GRID, INK, SOFT, Picture  # noqa: E402

WARM_UP = 3
EXPERTS_OF_A_TOKEN = 2
BASE = dict(hidden=256, layers=4, experts=0, rows=4, length=256, ranks=1, accumulation=1)
TINY = dict(hidden=64, layers=2, experts=0, rows=1, length=32, ranks=1, accumulation=1)
AXES = {  # what varies, from the base
    "parameters": [dict(hidden=256, layers=6), dict(hidden=512, layers=6), dict(hidden=768, layers=10), dict(hidden=1024, layers=24)],
    "length": [dict(rows=1, length=n) for n in (128, 256, 512, 1024, 2048, 4096)],
    "ranks": [dict(ranks=n) for n in (1, 2, 4)],
    "experts": [dict(experts=n) for n in (2, 4, 8, 16, 32)],
    "accumulation": [dict(accumulation=n) for n in (1, 2, 4, 8, 16)],
}
TINY_AXES = {
    "parameters": [dict(hidden=64), dict(hidden=128)],
    "length": [dict(length=n) for n in (32, 64)],
    "ranks": [dict(ranks=n) for n in (1, 2)],
    "experts": [dict(experts=n) for n in (2, 4)],
    "accumulation": [dict(accumulation=n) for n in (1, 2)],
}
COSTS = {  # measured -> what predicts it, unit, factor to it
    "step": ("flops", "ms", 1e3),
    "memory": ("planned", "MiB", 1 / (1 << 20)),
    "exposed": ("moved", "ms", 1e3),
}


def config_of(point):
    config = json.loads((DEMO / "config.json").read_text())
    hidden = point["hidden"]
    heads = max(1, hidden // 64)
    config |= {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": point["layers"], "vocab_size": 4096,
               "num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2), "head_dim": 64,
               "max_position_embeddings": 8192}
    if point["experts"]:
        config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": point["experts"],
                   "moe_intermediate_size": 2 * hidden, "num_experts_per_tok": EXPERTS_OF_A_TOKEN, "norm_topk_prob": True,
                   "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "output_router_logits": False}
    return config


def weights_of(config):
    """Elements of all weights, and of those that a token is multiplied with."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    width = config["num_attention_heads"] * config["head_dim"]
    attention = 2 * hidden * width + 2 * hidden * config["num_key_value_heads"] * config["head_dim"]
    experts = config.get("num_experts", 0)
    expert = 3 * hidden * (config["moe_intermediate_size"] if experts else config["intermediate_size"])
    router = hidden * experts
    head = hidden * config["vocab_size"]
    norms = layers * (2 * hidden + 2 * config["head_dim"]) + hidden
    total = layers * (attention + router + expert * max(1, experts)) + head + norms
    return total, layers * (attention + router + expert * (EXPERTS_OF_A_TOKEN if experts else 1)) + head


def predicted(point, config):
    total, multiplied = weights_of(config)
    width = config["num_attention_heads"] * config["head_dim"] * config["num_hidden_layers"]
    tokens = point["rows"] * point["length"] * point["accumulation"] * point["ranks"]
    return {"parameters": total, "tokens": tokens,
            "flops": 3 * tokens * (2 * multiplied + 4 * width * point["length"]),
            "moved": total * (28 / point["ranks"] + 12 * point["accumulation"])}


def train(build, folder, point, steps):
    config = config_of(point)
    (folder / "config.json").write_text(json.dumps(config))
    model, output = folder / "model", folder / "out"
    subprocess.run([build / "bin/make_model", "--config", folder / "config.json", "--tokenizer", DEMO, "--output", model],
                   check=True, stdout=subprocess.DEVNULL)
    command = [build / "bin/finetune_zero3", "--model_name", model, "--dataset_name", folder / "data.json", "--dtype=fp32",
               "--recipe=deepspeed_example", "--lr=1e-4", f"--batch_size={point['rows']}", f"--max_length={point['length']}",
               f"--steps={steps}", "--stage=3", f"--gradient_accumulation_steps={point['accumulation']}", "--progress=off",
               "--no-tensorboard", "--no-samples", "--output_dir", output]
    if point["ranks"] > 1:
        command = [build / "bin/tandem", "launch", "-n", str(point["ranks"]), "--", *command]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: [scaling] {point}: exit code {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    timed = [line for line in lines if "step_time_s" in line][WARM_UP:]
    expected = predicted(point, config)
    if timed[-1]["tokens"] != expected["tokens"]:
        sys.exit(f"error: [scaling] {point}: a step had {timed[-1]['tokens']} tokens instead of {expected['tokens']}; its records are short")
    memory = json.loads((output / "summary.json").read_text())["memory"]["host"]
    waits = [sum(line[f"exposed_{what}_s"] for what in ("optimizer", "gather", "reduce")) for line in timed]
    return {"step": statistics.median(line["step_time_s"] for line in timed), "exposed": statistics.median(waits),
            "memory": memory["actual_bytes"], "planned": memory["predicted_bytes"], **expected}


def slope(sizes, costs):
    """Returns the slope of the least-squares line through the logarithms; None where there are none to take."""
    if len(sizes) < 2 or min(costs) <= 0:
        return None
    xs, ys = [math.log(x) for x in sizes], [math.log(y) for y in costs]
    mean_x, mean_y = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / sum((x - mean_x) ** 2 for x in xs)


def slopes_of(axis, points):
    found = {}
    for cost, (predictor, _, _) in COSTS.items():
        visible = cost != "exposed" or all(p["exposed"] > p["step"] / 100 for p in points)
        found[cost] = {"measured": slope([p[axis] for p in points], [p[cost] for p in points]) if visible else None,
                       "predicted": slope([p[axis] for p in points], [p[predictor] for p in points])}
    return found


def print_axis(axis, points, slopes):
    print(f"\n| {axis} | step, ms | GFLOP | memory, MiB | planned, MiB | exposed, ms | moved, MB |\n|---|---|---|---|---|---|---|")
    for p in points:
        print(f"| {p[axis]} | {p['step'] * 1e3:.2f} | {p['flops'] / 1e9:.2f} | {p['memory'] / (1 << 20):.0f} | "
              f"{p['planned'] / (1 << 20):.0f} | {p['exposed'] * 1e3:.2f} | {p['moved'] / 1e6:.1f} |")

    def text(value):
        return "-" if value is None else f"{value:.2f}"
    pairs = (f"{text(slopes[cost][side])}" for cost in COSTS for side in ("measured", "predicted"))
    print(f"| **slope** | {' | '.join(pairs)} |", flush=True)


def draw(axes, path):
    """A row for each axis, a panel for each cost: the points, and the predicted line at their middle; both scales logarithmic."""
    panel, high, left, top = 340, 150, 90, 46
    picture = Picture(left + len(COSTS) * (panel + 40), len(axes) * (high + 60) + top)
    for row, (axis, found) in enumerate(axes.items()):
        points = found["points"]
        for column, (cost, (predictor, unit, factor)) in enumerate(COSTS.items()):
            x0, y0 = left + column * (panel + 40), top + row * (high + 60)
            shown = [(p[axis], p[cost] * factor, p[predictor]) for p in points if p[cost] > 0]
            slopes = found["slopes"][cost]
            said = ", ".join(f"{side} {slopes[side]:.2f}" for side in ("measured", "predicted") if slopes[side] is not None)
            picture.text(x0, y0 - 8, f"{cost}, {unit}, over {axis}: {said or 'hidden'}")
            picture.rect(x0, y0, panel, high, "none", more=f' stroke="{GRID}"')
            if len(shown) < 2:
                continue
            middle = math.exp(statistics.fmean(math.log(y / z) for _, y, z in shown))
            lines = [(x, y, z * middle) for x, y, z in shown]
            low, most = min(min(y, z) for _, y, z in lines) / 1.3, max(max(y, z) for _, y, z in lines) * 1.3

            def place(x, y, x0=x0, y0=y0, low=low, most=most, first=lines[0][0], last=lines[-1][0]):
                return (x0 + 20 + math.log(x / first) / math.log(last / first) * (panel - 40),
                        y0 + high - math.log(y / low) / math.log(most / low) * high)
            for (x1, _, z1), (x2, _, z2) in zip(lines, lines[1:]):
                picture.line(*place(x1, z1), *place(x2, z2), SOFT, ' stroke-dasharray="4 3"')
            for x, y, _ in lines:
                at_x, at_y = place(x, y)
                picture.rect(at_x - 3, at_y - 3, 6, 6, INK, f"{axis} {x}: {y:.3g} {unit}")
                picture.text(at_x, y0 + high + 16, f"{x:.3g}", SOFT, "middle", ' font-size="11"')
            for y in (low * 1.3, most / 1.3):
                picture.text(x0 - 6, place(lines[0][0], y)[1] + 4, f"{y:.3g}", SOFT, "end", ' font-size="11"')
    Path(path).write_text(picture.done())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--tiny", action="store_true", help="sizes that show nothing but that the tool works, in seconds")
    parser.add_argument("--plot", help="an SVG of all axes")
    parser.add_argument("--json", help="points and slopes")
    options = parser.parse_args()
    if options.steps <= WARM_UP:
        parser.error(f"--steps is {options.steps}, and {WARM_UP} of them warm up; give more")
    base, chosen = (TINY, TINY_AXES) if options.tiny else (BASE, AXES)
    axes = {}
    for axis in options.axes:
        points = []
        for varied in chosen[axis]:
            with tempfile.TemporaryDirectory() as name:
                point = {**base, **varied}
                write_data(Path(name), max(800, 2 * point["length"]))
                points.append({**point, **train(options.build, Path(name), point, options.steps)})
        axes[axis] = {"points": points, "slopes": slopes_of(axis, points)}
        print_axis(axis, points, axes[axis]["slopes"])
    if options.plot:
        draw(axes, options.plot)
    if options.json:
        Path(options.json).write_text(json.dumps(axes, indent=1))


if __name__ == "__main__":
    main()
