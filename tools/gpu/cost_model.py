#!/usr/bin/env python3
"""Says before a run on a GPU what its step should take: time by operation, exposed time, memory, from a model's config.json.

    tools/gpu/cost_model.py CONFIG --rows R --length T [--recompute] [--placement cpu] ...   shares by operation
    tools/gpu/cost_model.py --fit                                                            constants and residuals
    tools/gpu/cost_model.py --expect [--check]                              writes, or compares, the table in docs/device.md

Figures are the model's and no measurements. The operations' FLOPs and bytes follow from the config (cost_operations.py). The
schedule is that of one rank: a lane of the host that queues, a device that works on one thing after another (compute, copies inside
of its memory, sums, updates), two links, a pool that updates state on the host, and streams through the device. Not modelled:
experts, packed rows, LoRA, several ranks, micro-steps, NVMe, boundaries that leave the device, kernels that share the device, and
gathers that share a link with streams.
"""

import argparse
import dataclasses
import functools
import json
import math
import re
import sys
from pathlib import Path

import cost_operations as cost
from cost_operations import GIB, GPUS, HOST_GIB, NOW, RECORDED, Batch, Constants, Model, Run

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import page_block  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = Path(__file__).resolve().parent / "configs"
PAGE = ROOT / "docs/device.md"
COMMAND = "tools/gpu/cost_model.py --expect"
STEPS, COUNTED = 4, 2  # played, and of these the last ones counted
SLICES_UNDER_WAY = 3  # of updates on the device and through it
UPDATE_BYTES = 28  # of a parameter: state read and written, gradient and weight of 16 bits; in fp32 the same
AS_GOOD, SLOWER_POOL = 1.005, 2 / 3  # of the solver
STREAMED_SHARES = (0, 0.25, 0.4, 0.5, 0.6, 0.75, 1)  # tried with placement auto, of the units whose state is not on the device


class Schedule:
    """Steps of a run, one after another, on clocks of their own for host, device, links and pool; in seconds."""

    def __init__(self, run, constants, placements):
        self.run, self.constants, self.placements = run, constants, placements
        self.memory = cost.memory_of(run, placements)
        self.sizes = run.model.units()
        self.host = self.device = self.to_device = self.to_host = self.gathered = self.updater = 0.0
        self.updated_until = {"host": 0.0, "streamed": 0.0}  # the pool's clock, and that of the streams
        self.began = self.last_reduced = 0.0  # this step, and its latest gradient
        self.ready = [0.0] * len(self.sizes)  # when a unit's weights are current
        self.released = {}  # layer -> when the device has ended with its slot
        self.pending = []  # updates on the device that have not run: (ready, unit)
        self.speculative = []  # updates of pool and streams that may begin before the verdict: (ready, unit)
        costs = {id(phases): self.costs_of(phases[0], phases[1] + phases[2]) for phases in run.segments}  # all layers have the same
        self.costs = [costs[id(phases)] for phases in run.segments]
        self.spent = dict.fromkeys(("gathers", "gradient sums", "updates", "to device", "to host", "host updates"), 0.0)

    def costs_of(self, *visits):
        """For forward and backward: seconds of the device, and operations that the host queues."""
        element = self.run.batch.element
        return [(math.fsum(operation.seconds(self.run.gpu, self.constants, element) for operation in operations),
                 sum(operation.launches for operation in operations)) for operations in visits]

    def on_memory(self, what, size, ready):
        """Moves bytes of device memory, which is work of the device, and returns when that has ended."""
        took = size / (self.constants.streaming * self.run.gpu.bytes_per_s)
        self.spent[what] += took
        self.device = max(self.device, ready) + took
        return self.device

    def gather(self, unit, freed):
        size = self.sizes[unit] * self.run.batch.element
        begins = max(self.ready[unit], freed, self.began)
        if self.placements[unit] == "host":
            took = size / self.run.gpu.link_bytes_per_s
            self.spent["to device"] += took
            self.to_device = max(self.to_device, begins) + took
            return self.to_device
        if self.run.overlap == "off":
            return self.on_memory("gathers", 2 * size, max(self.host, begins))
        # A copy beside compute: it takes from the device, and no visit that is queued waits for it.
        took = 2 * size / (self.constants.streaming * self.run.gpu.bytes_per_s)
        self.spent["gathers"] += took
        self.device += took
        self.gathered = max(self.gathered, begins) + took
        return self.gathered

    def gathers_for(self, segment, backward):
        """When the unit of a visit lies in its slot."""
        layers, slots = self.run.model.layers, self.memory.layer_slots
        unit = segment
        if not 1 <= segment <= layers:
            if segment > 0 and self.run.model.tied:
                unit = 0
            is_first = not backward and segment == unit
            return self.gather(unit, 0.0) if is_first else 0.0
        if backward and segment > layers - slots:
            return 0.0  # it is still there
        before = segment + slots if backward else segment - slots
        return self.gather(unit, self.released.get(before, 0.0))

    def run_update(self, ready, unit):
        """On the device, slice by slice; a slice is begun by the host when the one three before it has ended."""
        size = self.sizes[unit]
        slices = -(-size // self.run.tree.slice_elements)
        of_slice = UPDATE_BYTES * size / slices / (self.constants.streaming * self.run.gpu.bytes_per_s)
        turn = max(of_slice, (of_slice + self.constants.host_wait_s) / SLICES_UNDER_WAY)
        begins = max(self.updater, ready)
        self.updater = begins + slices * turn
        self.ready[unit] = max(self.updater, self.on_memory("updates", UPDATE_BYTES * size, begins))

    def queue_update(self, ready, unit):
        """Updates state that lies on the host: by the pool, or slice by slice through the device, copied in, updated, copied out."""
        size, kind = self.sizes[unit], self.placements[unit]
        took = size / self.constants.host_updates_per_s
        if kind == "streamed":
            one_way = cost.STATE_BYTES * size / self.run.gpu.link_bytes_per_s
            slices = -(-size // self.run.tree.streamed_elements)
            took = max(one_way, (2 * one_way + slices * self.constants.host_wait_s) / SLICES_UNDER_WAY)
            in_memory = UPDATE_BYTES * size / (self.constants.streaming * self.run.gpu.bytes_per_s)
            for what, spent in (("to device", one_way), ("to host", one_way), ("updates", in_memory)):
                self.spent[what] += spent
            self.device += in_memory
        else:
            self.spent["host updates"] += took
        self.updated_until[kind] = self.ready[unit] = max(self.updated_until[kind], ready) + took

    def fill_gap(self, until, needed=None):
        """Runs pending updates while the device has nothing else to do, and in any case that of the unit that is needed."""
        while self.pending and (any(unit == needed for _, unit in self.pending)
                                or max(self.device, self.updater, self.pending[0][0]) < until):
            self.run_update(*self.pending.pop(0))

    def visit(self, segment, backward):
        seconds, launches = self.costs[segment][backward]
        unit = 0 if segment > self.run.model.layers and self.run.model.tied else segment
        wait, launch = self.constants.host_wait_s, self.constants.host_launch_s
        self.fill_gap(0.0, unit)
        gathered = self.gathers_for(segment, backward)
        # Once more through the loop's thread where the gather has just ended.
        at = max(self.host + wait, gathered + 2 * wait if gathered > 0 else 0.0)
        self.fill_gap(at)
        self.host = at + launch * launches
        self.device = max(max(self.device, at + launch) + seconds, self.host)
        if self.run.overlap == "off":
            self.host = self.device + wait
        self.released[segment] = self.device
        if backward and not (segment > self.run.model.layers and self.run.model.tied):
            self.reduce(segment)

    def reduce(self, unit):
        size = self.sizes[unit] * self.run.batch.element
        if self.placements[unit] != "host":
            end = self.on_memory("gradient sums", 2 * size, self.device)
        else:
            took = size / self.run.gpu.link_bytes_per_s
            self.spent["to host"] += took
            self.to_host = end = max(self.to_host, self.device) + took
        end += self.constants.host_wait_s
        self.last_reduced = max(self.last_reduced, end)
        if self.run.overlap == "off":
            self.host = end
        elif self.run.speculates and unit in self.memory.shadowed:
            self.updated.add(unit)
            (self.pending if self.placements[unit] == "device" else self.speculative).append((end, unit))

    def step(self):
        segments = range(len(self.sizes))
        self.updated, self.speculative, self.began = set(), [], self.host
        for segment in segments:
            self.visit(segment, False)
        for segment in reversed(segments):
            self.visit(segment, True)
        verdict = max(self.host, self.device, self.last_reduced) + self.constants.host_wait_s
        left = []
        for ready, unit in self.speculative:
            if max(self.updated_until[self.placements[unit]], ready) < verdict:
                self.queue_update(ready, unit)
            else:
                left.append(unit)
        for unit in sorted({*left, *(set(segments) - self.updated)}):
            if self.placements[unit] == "device":
                self.pending.append((verdict, unit))
            else:
                self.queue_update(verdict, unit)
        self.pending.sort(key=lambda update: update[1])  # in the order of the next forward
        self.host = verdict
        if self.run.overlap == "off":
            for _, unit in self.pending:
                self.run_update(self.host, unit)
            self.pending = []
            self.host = max([self.host, *self.ready]) + self.constants.host_wait_s


@dataclasses.dataclass(frozen=True)
class Prediction:
    step_s: float
    compute_s: float
    spent: dict  # seconds of a step for what is not compute, some of it beside compute
    memory: cost.Memory
    placements: tuple
    rows: tuple  # (phase, operation, launches, FLOPs, bytes, seconds)

    @property
    def exposed_s(self):
        """The time of a step in which no operation of the model runs."""
        return self.step_s - self.compute_s


def operation_rows(run, constants):
    found = {}
    for segment, phases in enumerate(run.segments):
        part = {0: "embedding, ", len(run.segments) - 1: "head, "}.get(segment, "")
        for phase, operations in zip(("forward", "recomputation", "backward"), phases):
            for operation in operations:
                sums = found.setdefault((part + phase, operation.name), [0, 0.0, 0.0, 0.0])
                for i, value in enumerate((operation.launches, operation.flops, operation.bytes,
                                           operation.seconds(run.gpu, constants, run.batch.element))):
                    sums[i] += value
    return tuple((*name, *sums) for name, sums in found.items())


def play(run, constants, placements):
    schedule = Schedule(run, constants, placements)
    before = began = None
    for step in range(STEPS):
        if step == STEPS - COUNTED:
            before, began = dict(schedule.spent), schedule.host
        schedule.step()
    spent = {what: (schedule.spent[what] - before[what]) / COUNTED for what in before}
    compute = math.fsum(seconds for visits in schedule.costs for seconds, _ in visits)
    return Prediction((schedule.host - began) / COUNTED, compute, spent, schedule.memory, tuple(placements), ())


def candidates(run):
    """With placement auto the first units on the device, and of the others a share streamed, as far as they fit."""
    units = len(run.model.units())
    if run.placement != "auto":
        return [["host" if run.placement == "cpu" else "device"] * units]
    found = []
    for count in range(units + 1):
        for share in STREAMED_SHARES if count < units else (0,):
            rest = ["streamed" if int((i + 1) * share) > int(i * share) else "host" for i in range(units - count)]
            found.append(["device"] * count + rest)
    found = [placements for placements in found if cost.fits(run, placements)]
    if not found:
        raise ValueError(f"{run.model.name}: no placement fits into {run.gpu.name} and {run.host_gib} GiB of the host")
    return found


def predict(run, constants):
    """By the rules of engine/placement/placement_solver.hpp: of the placements within half a percent of the quickest one those
    that are also quick with a slower pool, then those that have the first two units on the device, then the least device memory."""
    played = [play(run, constants, placements) for placements in candidates(run)]
    as_good = [one for one in played if one.step_s <= AS_GOOD * min(one.step_s for one in played)]
    if len(as_good) > 1:
        slower = dataclasses.replace(constants, host_updates_per_s=SLOWER_POOL * constants.host_updates_per_s)
        of_slower = [play(run, slower, one.placements).step_s for one in as_good]
        as_good = [one for one, seconds in zip(as_good, of_slower) if seconds <= AS_GOOD * min(of_slower)]

    def rank(one):
        return one.placements[:2] != ("device", "device"), cost.bare_memory(run, one.placements).device, one.step_s

    best = min(as_good, key=rank)
    return dataclasses.replace(best, rows=operation_rows(run, constants))


# Milliseconds of bench/results/2026-11-26_gpu_h100_h200.md, Qwen3-0.6B in bf16 on an H100, each with the constant that it is fitted
# by and the least and the most of that. Clipping at 1.0 was on and weights were random, so verdicts are taken as missed.
MEASURED = ((8, 1024, "full", 104.0, "matmul_depth", 1.0, 4000.0), (8, 1024, "off", 135.0, "host_wait_s", 1e-6, 1e-3),
            (8, 128, "full", 59.8, "host_launch_s", 1e-6, 2e-4))
# Two more of that record with the same kernels, which nothing is fitted to: the 20 M model of bench/step/shapes.cpp, 8 x 256.
HELD_OUT = ((4, 13.8), (2, 12.4))
FIT_TURNS, FIT_HALVINGS = 6, 20


def config(name):
    return Model.of(CONFIGS / f"{name}.json")


def small_model():
    source = (ROOT / "bench/step/shapes.cpp").read_text(encoding="utf-8")
    return Model.of_config("Qwen3, 20 M", json.loads(re.search(r'R"\((\{.*?\})\)"', source, re.DOTALL).group(1)))


def measured_run(rows, length, overlap):
    return Run(config("qwen3_0.6b"), Batch(rows, length, 2), overlap=overlap, placement="gpu", tree=RECORDED, speculates=False)


@functools.lru_cache
def fit(flat=False):
    """Each constant in turn is halved to the figure that it moves most, until all three stand still. `flat`: all matmuls reach one
    share of the GPU's rate, whatever their depth, and that is fitted instead: the other end of what one model's step can tell."""
    constants = Constants(matmul_depth=0) if flat else Constants()
    runs = [measured_run(*figure[:3]) for figure in MEASURED]
    for _ in range(FIT_TURNS):
        for run, (*_, measured_ms, name, least, most) in zip(runs, MEASURED):
            if flat and name == "matmul_depth":
                name, least, most = "large_matmul", 0.1, 1.0
            for _ in range(FIT_HALVINGS):
                middle = (least + most) / 2
                tried = dataclasses.replace(constants, **{name: middle})
                too_slow = 1e3 * play(run, tried, *candidates(run)).step_s > measured_ms
                least, most = (middle, most) if too_slow == (name == "large_matmul") else (least, middle)
            constants = dataclasses.replace(constants, **{name: float(f"{(least + most) / 2:.3g}")})
    return constants


def markdown(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def difference(predicted, measured):
    return f"{round(100 * (predicted / measured - 1), 1) + 0.0:+.1f} %"


def fit_table():
    rows = []
    for rows_, length, overlap, measured_ms, name, *_ in MEASURED:
        predicted_ms = 1e3 * predict(measured_run(rows_, length, overlap), fit()).step_s
        rows.append([f"Qwen3-0.6B, {rows_} x {length}, bf16", overlap, f"{measured_ms:g}", f"{predicted_ms:.1f}",
                     difference(predicted_ms, measured_ms), f"`{name}`: {getattr(fit(), name):.3g}"])
    for element, measured_ms in HELD_OUT:
        run = Run(small_model(), Batch(8, 256, element), placement="gpu", tree=RECORDED, speculates=False)
        predicted_ms = 1e3 * predict(run, fit()).step_s
        dtype = "fp32" if element == 4 else "bf16"
        rows.append([f"Qwen3 of 20 M, 8 x 256, {dtype}", "full", f"{measured_ms:g}", f"{predicted_ms:.1f}",
                     difference(predicted_ms, measured_ms), "none"])
    return markdown(["measured step", "overlap", "measured, ms", "model, ms", "difference", "fitted by it"], rows)


def shares(prediction):
    """(phase, operation, launches, FLOPs, bytes, seconds, share of the step), the time without work of the device last."""
    rows = [*prediction.rows, *(("beside", what, 0, 0.0, 0.0, prediction.spent[what])
                                for what in ("gathers", "gradient sums", "updates"))]
    rows.append(("", "device idle", 0, 0.0, 0.0, prediction.step_s - math.fsum(row[-1] for row in rows)))
    return [(*row, row[-1] / prediction.step_s) for row in rows]


def group_of(phase, operation):
    if phase.startswith(("head", "embedding")):
        return "embeddings and head"
    if phase in ("", "beside"):
        return {"gathers": "gathers and gradient sums", "gradient sums": "gathers and gradient sums",
                "updates": "updates on the device"}.get(operation, operation)
    named = {"attention": "attention", "q/k norm, rotation": "q/k norm and rotation", "sums over query heads": "attention"}
    return named.get(operation, "other row kernels" if operation in ("norm", "residual sum", "activation") else "matmuls of layers")


# Runs that queue.sh of the GPU kit has: where, model, rows, length, changes of Run. Q1, Q4 and Q5 clip at a limit that no norm
# reaches; the others at 1.0, which random weights pass.
EXPECTED = (
    ("Q1", "qwen3_4b", 4, 4096, {"recomputes": True, "placement": "cpu"}), ("Q1", "qwen3_4b", 4, 4096, {"recomputes": True}),
    ("Q2", "qwen3_0.6b", 8, 128, {"speculates": False}), ("Q2, Q3", "qwen3_0.6b", 8, 1024, {"speculates": False}),
    ("Q3", "qwen3_0.6b", 8, 1024, {"overlap": "off", "speculates": False}),
    ("Q3", "qwen3_4b", 4, 1024, {"recomputes": True, "speculates": False}), ("Q4", "llama31_8b", 4, 4096, {"recomputes": True}),
    ("Q4", "qwen3_8b", 4, 4096, {"recomputes": True}), ("Q5", "qwen3_14b", 2, 4096, {"recomputes": True, "gpu": GPUS["H200"]}))
TITLES = {"qwen3_0.6b": "Qwen3-0.6B", "qwen3_4b": "Qwen3-4B", "qwen3_8b": "Qwen3-8B", "qwen3_14b": "Qwen3-14B",
          "llama31_8b": "Llama-3.1-8B"}


def parts_of_state(run, prediction):
    sizes = run.model.units()
    parts = {kind: sum(size for size, place in zip(sizes, prediction.placements) if place == kind) / sum(sizes)
             for kind in ("device", "streamed", "host")}
    return " / ".join(f"{100 * part:.0f}" for part in parts.values())


@functools.lru_cache
def expected():
    runs = [(item, Run(config(name), Batch(rows, length, 2), **changes)) for item, name, rows, length, changes in EXPECTED]
    return [(item, run, predict(run, fit())) for item, run in runs]


def expectation_table():
    rows = []
    for item, run, prediction in expected():
        how = [run.placement, *(["recomputed"] if run.recomputes else []), *(["off"] if run.overlap == "off" else [])]
        flat = play(run, fit(flat=True), prediction.placements)
        rows.append([item, f"{TITLES[run.model.name]}, {run.batch.rows} x {run.batch.length}, {', '.join(how)}", run.gpu.name,
                     f"{1e3 * prediction.step_s:.0f}", f"{1e3 * flat.step_s:.0f}",
                     f"{round(run.batch.tokens / prediction.step_s, -1):,.0f}",
                     f"{1e3 * prediction.exposed_s:.0f}", parts_of_state(run, prediction), f"{prediction.memory.device / GIB:.0f}",
                     f"{prediction.memory.host / GIB:.0f}"])
    head = ["run", "shape", "GPU", "step, ms", "flat, ms", "tokens/s", "exposed, ms", "state on device / streamed / host, %",
            "device, GiB", "host, GiB"]
    return markdown(head, rows)


def group_table():
    columns, groups = [], []
    for _, run, prediction in (expected()[i] for i in (3, 2, 1, 7)):
        sums = {}
        for phase, operation, *_, share in shares(prediction):
            group = group_of(phase, operation)
            sums[group] = sums.get(group, 0) + share
        columns.append((f"{TITLES[run.model.name]}, {run.batch.rows} x {run.batch.length}", sums))
        groups += [group for group in sums if group not in groups]
    groups.sort(key=lambda group: -columns[0][1][group])
    rows = [[group, *(f"{round(100 * sums.get(group, 0), 1) + 0.0:.1f}" for _, sums in columns)] for group in groups]
    return markdown(["share of the step, %", *(name for name, _ in columns)], rows)


def page_text():
    return f"{fit_table()}\n\n{expectation_table()}\n\n{group_table()}\n"


def page(check):
    before, old, after = page_block.parts(PAGE.read_text(encoding="utf-8"), COMMAND)
    made = page_text()
    if check and made != old:
        print(f"docs/device.md is not what the cost model expects now; {COMMAND} writes it")
        return 1
    if not check:
        PAGE.write_text(before + made + after, encoding="utf-8")
    return 0


def print_shares(run):
    prediction = predict(run, fit())
    print(f"{run.model.name}: {run.model.parameters / 1e6:.0f} M parameters, {run.batch.rows} x {run.batch.length}, "
          f"{run.gpu.name}: "
          f"{1e3 * prediction.step_s:.1f} ms, {run.batch.tokens / prediction.step_s:,.0f} tokens/s, "
          f"{1e3 * prediction.exposed_s:.1f} ms exposed; "
          f"device {prediction.memory.device / GIB:.1f} GiB, host {prediction.memory.host / GIB:.1f} GiB, "
          f"{prediction.memory.layer_slots} layer slots; state on device / streamed / host {parts_of_state(run, prediction)} %")
    print(f"{'phase':24}{'operation':30}{'launches':>9}{'GFLOP':>10}{'GB':>8}{'ms':>9}{'share, %':>10}")
    for phase, operation, launches, flops, size, seconds, share in shares(prediction):
        print(f"{phase:24}{operation:30}{launches:9}{flops / 1e9:10.0f}{size / 1e9:8.2f}{1e3 * seconds:9.2f}{100 * share:10.2f}")
    for what in ("to device", "to host", "host updates"):
        print(f"busy beside the device: {what} {1e3 * prediction.spent[what]:.1f} ms")


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("config", nargs="?", type=Path, help="a Hugging Face config.json of a dense decoder")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--overlap", choices=("off", "full"), default="full")
    parser.add_argument("--placement", choices=("auto", "cpu", "gpu"), default="auto")
    parser.add_argument("--gpu", choices=tuple(GPUS), default="H100")
    parser.add_argument("--host_gib", type=float, default=HOST_GIB)
    parser.add_argument("--recorded", action="store_true", help="the tree that the record measured, instead of this one")
    parser.add_argument("--no-speculation", action="store_true", help="the gradient norm passes the limit in every step")
    parser.add_argument("--fit", action="store_true", help="print constants and residuals")
    parser.add_argument("--expect", action="store_true", help="write the table in docs/device.md")
    parser.add_argument("--check", action="store_true", help="compare it instead")
    return parser


def main():
    parser = options()
    given = parser.parse_args()
    if given.fit:
        for field in dataclasses.fields(Constants):
            is_fitted = field.name in {figure[4] for figure in MEASURED}
            print(f"{field.name:20} {getattr(fit(), field.name):<12g} {'fitted' if is_fitted else 'given'}")
        print(f"with flat matmuls: large_matmul {fit(flat=True).large_matmul}\n\n{fit_table()}")
        return 0
    if given.expect:
        return page(given.check)
    if given.config is None:
        parser.error("a config.json, --fit or --expect")
    print_shares(Run(Model.of(given.config), Batch(given.rows, given.length, 4 if given.dtype == "fp32" else 2), GPUS[given.gpu],
                     given.recompute, given.overlap, given.placement, RECORDED if given.recorded else NOW, not given.no_speculation,
                     given.host_gib))
    return 0


if __name__ == "__main__":
    sys.exit(main())
