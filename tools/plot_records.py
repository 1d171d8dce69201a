#!/usr/bin/env python3
"""Draws the claims of speed out of the records, and writes their figures: none is typed.

    python3 tools/plot_records.py [--check]

A claim names a record in bench/results/ and one of its sections, reads the figures there by the names of columns or lines,
and gives docs/speed/NAME.svg, its lines on docs/speed.md, and its rows in README.md's table. --check: exit 1 where a file
differs from what the records give.
"""
import re
import sys
import textwrap
from pathlib import Path

import charts
import page_block

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGE = ROOT / "docs/speed.md"
COMMAND = "python3 tools/plot_records.py"
NUMBER = r"[\d.]+"


class Section:
    """The part of a record below one heading."""

    def __init__(self, record, heading):
        self.record = record
        text = (ROOT / "bench/results" / record).read_text(encoding="utf-8")
        self.hardware = "2 CPUs of an EPYC"
        parts = re.split(r"^(#+ .*(?:\n--.*)?)$", text, flags=re.MULTILINE)
        machine = re.search(r"^Machine: (.*?(?:Xeon|EPYC))", text, re.MULTILINE | re.DOTALL)
        self.machine = re.sub(r"\s+", " ", machine.group(1)) if machine else ""
        self.head, self.text = next((h, t) for h, t in zip(parts[1::2], parts[2::2]) if h.lstrip("# ").startswith(heading))

    def command(self):
        """The first one in backticks, in the heading or below it."""
        return re.sub(r"\s+", " ", re.search(r"`([^`]*bench[^`]*)`", self.head + self.text).group(1))

    def rows(self):
        """The first table: a dict of each row by the columns' names."""
        lines = [line for line in self.text.split("\n\n") if line.lstrip().startswith("|") or "\n|" in line][0].splitlines()
        cells = [[cell.strip(" *") for cell in line.strip().strip("|").split("|")] for line in lines if line.startswith("|")]
        return [dict(zip(cells[0], row)) for row in cells[2:]]

    def find(self, pattern):
        """The groups of the only line that matches, as numbers."""
        found = re.findall(pattern, self.text, re.MULTILINE)
        if len(found) != 1:
            raise ValueError(f"{self.record}: {len(found)} lines like {pattern}")
        return [float(value) for value in (found[0] if isinstance(found[0], tuple) else found)]

    def source(self, name):
        return [self.command(), f"bench/results/{name} · {self.machine}"]


def first(cell):
    """The number that a cell begins with: of `2.28 (1.20 .. 2.59)` or `.97 (.97)` or `13 us`."""
    return float(re.match(NUMBER, cell).group(0))


def median_and_range(cell):
    return [float(value) for value in re.findall(NUMBER, cell.replace(" .. ", " "))[:3]]


def step():
    section = Section("2026-12-01_step_peers_xeon_2cpu.md", "One step of a 19.8 M Qwen3")
    section.hardware = "2 CPUs of a Xeon"
    names = {"torch": "eager", "compiled": "compiled", "compiled, autocast": "compiled, with autocast"}
    groups, rows, told, theirs = [], [], [], []
    for dtype in ("fp32", "bf16"):
        best = re.findall(rf"^qwen3 +{dtype}  ([a-z, ]+?) \d+ threads: +({NUMBER}) tokens/s  \(best\)$", section.text, re.MULTILINE)
        peers = sorted(((float(rate), kind) for kind, rate in best), reverse=True)
        kind = peers[0][1]
        over = "ratio" if kind == "torch" else f"over {kind}"
        ours, ratio, low, high = section.find(rf"^qwen3 +{dtype}  tandem full +: +({NUMBER}) tokens/s.*\b{over} ({NUMBER}) \(({NUMBER}) \.\. ({NUMBER})\)")
        figure = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        groups.append((dtype, [("Tandem", ours, None, None), ("Transformers, compiled", peers[0][0], None, None)]))
        rows.append((f"training step of a 20 M Qwen3, {dtype}", f"the best of Transformers: {names[kind]}", f"{figure} times the tokens/s"))
        told.append(figure)
        theirs.append(peers[0][0])
    text = (f"**A training step** of a 20 M Qwen3 beside Transformers as torch.compile makes it, the best of its ways here: {told[0]} "
            f"times the tokens/s in fp32; {told[1]} times in bf16{', which is slower there than fp32 is in PyTorch' if theirs[1] < theirs[0] else ''}. "
            "Our master weights stay fp32. The record has the others, and the losses.")
    return section, rows, text, charts.bars("A step of a 20 M Qwen3, batch 8 x 256, AdamW, clipping", "tokens/s", groups,
                                      section.source(section.record))


def adam():
    section = Section("2026-11-25_kernels_epyc_2cpu.md", "Adam beside PyTorch")
    groups, exact = [], {}
    for row in section.rows():
        group = []
        for peer in ("DeepSpeed", "PyTorch"):
            ratio, low, high = median_and_range(row[peer])
            group.append((f"{peer}'s time over ours", ratio, low, high))
            if row[""] == "pipeline, exact":
                exact[peer] = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        groups.append((row[""], group))
    text = (f"**The optimizer** on the CPU, bf16 gradient in and bf16 weight out: {exact['DeepSpeed']} times as fast as DeepSpeed's CPUAdam, "
            f"{exact['PyTorch']} times as PyTorch's fused AdamW.")
    peers = {"DeepSpeed": "DeepSpeed's CPUAdam", "PyTorch": "PyTorch's fused AdamW"}
    rows = [("AdamW on the CPU, bf16 in and out", peers[name], f"{ratio} times as fast") for name, ratio in exact.items()]
    return section, rows, text, charts.bars("AdamW with norm, unscaling and clipping, beside its peers", "times as fast; dashed: 1", groups,
                                      section.source(section.record), mark=1.0)


def overlap():
    section = Section("2026-11-26_claims_epyc_2cpu.md", "The schedule on a simulated accelerator")
    rows = section.rows()
    names = {"default": "the defaults", "full, all on the host": "overlap full, all state on the host", "offload": "overlap offload",
             "serial": "serial", "goal": "goal"}
    series = {name: [first(row[column]) for row in rows] for column, name in names.items()}
    default = series["the defaults"]
    text = (f"**Hidden work**: of the time that the busiest of compute, optimizer and links needs at least, a step with an optimizer that "
            f"takes a quarter of compute's time reaches {default[0]:.2f}, one where both are equal {default[3]:.2f} "
            f"(one after the other: {series['serial'][0]:.2f} and {series['serial'][3]:.2f}). A simulated accelerator.")
    table = [("share of the possible overlap, simulated accelerator, optimizer as slow as compute", "one after the other: "
              f"{series['serial'][3]:.2f}", f"{default[3]:.2f}")]
    return section, table, text, charts.lines("Overlap efficiency T*/T on a simulated accelerator, real Adam", "t_Adam / t_GPU", "T*/T",
                                       [row["t_Adam / t_GPU"] for row in rows], series, section.source(section.record), mark=1.0)


def runtime():
    section = Section("2026-11-26_claims_epyc_2cpu.md", "`./tandem bench runtime")
    groups, ours = [], {}
    for case in ("RB1a ping-pong, same loop", "RB2 mailbox, senders 1", "RB2 mailbox, senders 2", "RB3 call", "RB3 switch, local",
                 "RB3 spawn and join"):
        line = re.search(rf"^{case} +({NUMBER})(.*)$", section.text, re.MULTILINE)
        peers = re.findall(rf"([A-Z][A-Za-z ]+?) ({NUMBER}) \(", line[2])
        label = case.split(" ", 1)[1]
        ours[label] = float(line[1])
        groups.append((label, [("Tandem", float(line[1]), None, None), *((name, float(value), None, None) for name, value in peers)]))
    text = (f"**The runtime**: a message to a mailbox takes {ours['mailbox, senders 1']:.0f} ns with one sender and "
            f"{ours['mailbox, senders 2']:.0f} with two, a switch of tasks {ours['switch, local']} ns.")
    table = [("runtime: a message to a mailbox, one sender", "", f"{ours['mailbox, senders 1']:.0f} ns")]
    return section, table, text, charts.bars("Messages, calls, switches beside Asio and CAF (logarithmic)", "ns, less is better", groups,
                                      section.source(section.record), is_log=True)


def cifar():
    section = Section("2026-11-26_claims_epyc_2cpu.md", "Images per second")
    groups, ratios = [], []
    for batch in (4, 16):
        pattern = (rf"^batch +{batch}  tandem (\w+) +\d threads: +{NUMBER} images/s, ({NUMBER}) \(({NUMBER}) \.\. ({NUMBER})\) x the best sgd")
        lines = re.findall(pattern, section.text, re.MULTILINE)
        group = []
        for overlap in ("off", "offload"):
            ratio, low, high = max((list(map(float, line[1:])) for line in lines if line[0] == overlap))
            group.append((f"overlap {overlap}", ratio, low, high))
        ratios.append("{:.2f} ({:.2f} to {:.2f})".format(*group[-1][1:]))
        groups.append((f"batch {batch}", group))
    text = (f"**CIFAR-10** with the engine beside PyTorch's own loop: {ratios[0]} times the images/s at batch 4, {ratios[1]} times at "
            "batch 16.")
    table = [(f"CIFAR-10 net, batch {batch}", "PyTorch's loop", f"{ratio} times the images/s") for batch, ratio in zip((4, 16), ratios)]
    return section, table, text, charts.bars("CIFAR-10 net, fp32, images/s over those of PyTorch's loop (SGD, its best threads)",
                                      "times as many; dashed: 1", groups, section.source(section.record), mark=1.0)


def collectives():
    section = Section("2026-11-21_collectives_epyc_2cpu.md", "A third run")
    rows = section.rows()
    blocks = list(dict.fromkeys(row["block"] for row in rows))[1:]  # of the smallest there is no reduce-scatter
    series = {}
    for operation in ("all-gather", "reduce-scatter"):
        for ranks in ("2", "4"):
            by_block = {row["block"]: first(row["times Gloo"]) for row in rows if row["operation"] == operation and row["ranks"] == ranks}
            series[f"{operation}, {ranks} ranks"] = [by_block[block] for block in blocks]
    least = min(value for values in series.values() for value in values)
    text = f"**Gathers and reductions** between processes of a host are at least {least:.0f} times as fast as Gloo's."
    table = [("gathers and reductions between processes of a host", "Gloo", f"at least {least:.0f} times as fast")]
    return section, table, text, charts.lines("Collectives between processes, times as fast as Gloo (logarithmic; dashed: 1)", "block", "times",
                                       blocks, series, section.source(section.record), is_log=True, mark=1.0)


def gpu():
    """A row alone: each figure is one run, on different machines of the same kind."""
    section = Section("2026-11-26_gpu_h100_h200.md", "Steps")
    section.hardware = "two H100, one run each"
    ours, = section.find(rf"^\| \| \| bf16 \| full \| H200, H100 \| 189 [^|]*\| \*\*({NUMBER}) ")
    theirs, = section.find(rf"8 x 1024\n({NUMBER}) ms ")
    ratio, = section.find(rf"Ours now over Transformers: {NUMBER} and ({NUMBER}), on different machines")
    row = ("step of Qwen3-0.6B on a GPU, bf16, 8 x 1024 tokens", f"eager Transformers, on another machine: {theirs:.0f} ms",
           f"{ours:.0f} ms, about {ratio} times as fast")
    return section, [row], None, None


CLAIMS = {"step": step, "gpu": gpu, "adam": adam, "overlap": overlap, "runtime": runtime, "cifar": cifar, "collectives": collectives}


def wrapped(text):
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def made():
    """Path -> content, of the two pages too."""
    files, block = {}, []
    table = ["| measured | beside | Tandem | hardware |", "|---|---|---|---|"]
    for name, claim in CLAIMS.items():
        section, rows, text, svg = claim()
        table += [f"| {' | '.join(row)} | [{section.hardware}](bench/results/{section.record}) |" for row in rows]
        if svg:
            files[ROOT / f"docs/speed/{name}.svg"] = svg
            block += ["", wrapped(text), "", f"![{re.search(r'[*]{2}(.*?)[*]{2}', text).group(1)}, drawn](speed/{name}.svg)", "",
                      wrapped(f"`{section.command()}`"), f"([record](../bench/results/{section.record}))"]
    for page, lines in ((README, table), (PAGE, block)):
        before, _, after = page_block.parts(page.read_text(encoding="utf-8"), COMMAND)
        files[page] = before + "\n".join(lines).lstrip("\n") + "\n" + after
    return files


def main():
    files = made()
    drawn = {path for path in (ROOT / "docs/speed").glob("*")}
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    wrong += sorted(drawn - set(files))
    if "--check" not in sys.argv:
        (ROOT / "docs/speed").mkdir(exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is not what the records say; python3 tools/plot_records.py writes it")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
