#!/usr/bin/env python3
"""Draws some steps of a run's trace.json.gz (--trace) as an SVG: what compute, the optimizer's threads and the copies did,
a row each, over one axis of time.

    python3 tools/plot_trace.py runs/a/trace.json.gz --first_step 20 --steps 2 > overlap.svg
"""
import argparse
import gzip
import json
import sys
import zlib

from svg import GRID, INK, SOFT, Picture, tick_distance

WIDTH, LEFT, RIGHT, ROW, GAP, TOP = 1200, 108, 16, 30, 10, 34
BACK = "#f7f7f7"
COLORS = {  # kind: even units, odd units
    "forward": ("#74a9cf", "#bdd7e7"),
    "backward": ("#2b6ca3", "#5a93c4"),
    "update": ("#e6731a", "#f8ab5f"),
    "copy": ("#57a85f", "#a3d3a2"),
}
LABELS = {"forward": "forward", "backward": "backward", "update": "optimizer's update", "copy": "copy"}


class Unusable(Exception):
    """The file cannot be drawn; the text says why and what to do."""


def read_trace(path):
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.endswith(".gz") else open(path, encoding="utf-8") as file:
            trace = json.load(file)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        if not all(isinstance(event, dict) and "ph" in event for event in events):
            raise ValueError
    except OSError as error:
        raise Unusable(f"cannot read {path}: {error.strerror or 'it is not gzip'}; give a run's trace.json.gz") from None
    except (ValueError, KeyError, TypeError, EOFError, zlib.error):
        raise Unusable(f"{path} is no Chrome trace; give a run's trace.json.gz") from None
    return events, trace.get("otherData", {}) if isinstance(trace, dict) else {}


def rows_of(events):
    """Thread -> label, from the top: compute, the optimizer, then what moves weights and gradients: an accelerator's
    streams if there are any, else the threads that copy."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}

    def named(word):
        of_word = [(len(name), name, tid) for tid, name in names.items() if name.split(" ")[0] == word]
        return {tid: name for _, name, tid in sorted(of_word)}

    optimizer = named("optimizer")
    if len(optimizer) == 1:
        optimizer = {tid: "optimizer" for tid in optimizer}
    streams = {tid: label for stream, label in (("h2d", "h2d copies"), ("d2h", "d2h copies"))
               for tid, name in names.items() if name == stream}
    return {**named("compute"), **optimizer, **(streams or named("copy"))}


def boundaries_of(events, other):
    """[(step, its begin in us)], in order, and behind the last one where it ends, if the trace says so."""
    marks = sorted((e["args"]["step"], e["ts"]) for e in events if e["ph"] == "i" and "step" in e.get("args", {}))
    if marks and other.get("end_ns", 0) / 1000 > marks[-1][1]:
        marks.append((marks[-1][0] + 1, other["end_ns"] / 1000))
    return marks


def kind_of(row, name):
    word = name.split(" ")[0]
    if row == "compute":
        return word if word in ("forward", "backward") else None
    return "update" if row.startswith("optimizer") else "copy"


def unit_of(name):
    """"block 3" of "AdamW block 3 [2/8]"."""
    return name.split(" [")[0].split(" ", 1)[-1]


def spans_in(events, rows, begin, end):
    """[thread, kind, name, start, end] of the rows; pieces of one thing that follow each other closely are one."""
    apart = (end - begin) / WIDTH / 2
    last = {}
    spans = []
    for event in sorted((e for e in events if e["ph"] == "X" and e["tid"] in rows), key=lambda e: e["ts"]):
        start, stop = event["ts"], event["ts"] + event["dur"]
        name = event["name"].split(" [")[0]
        kind = kind_of(rows[event["tid"]], name)
        if kind is None or stop <= begin or start >= end:
            continue
        start, stop = max(start, begin), min(stop, end)
        before = last.get(event["tid"])
        if before and before[2] == name and start - before[4] < apart:
            before[4] = max(stop, before[4])
        else:
            last[event["tid"]] = [event["tid"], kind, name, start, stop]
            spans.append(last[event["tid"]])
    return spans


def short_unit(unit):
    """Returns a name that fits into a narrow box: the number of a block."""
    word, _, number = unit.partition(" ")
    return number if word in ("block", "layer", "stage") and number else unit


def draw_spans(picture, spans, place, x_of):
    order = {}
    for _, _, name, _, _ in spans:
        order.setdefault(unit_of(name), len(order))
    for tid, kind, name, start, stop in spans:
        unit = unit_of(name)
        number = short_unit(unit)
        shade = int(number) % 2 if number.isdigit() else order[unit] % 2
        x, width = x_of(start), max(0.4, x_of(stop) - x_of(start))
        picture.rect(x, place[tid], width, ROW, COLORS[kind][shade], f"{name}: {(stop - start) / 1000:.2f} ms",
                     ' stroke="white" stroke-width=".5"' if width > 3 else "")
        for label in (unit, number):
            if width > 7 * len(label) + 6 and unit != kind:
                fill = "white" if kind == "backward" or (kind == "update" and shade == 0) else INK
                picture.text(x + width / 2, place[tid] + ROW / 2 + 4, label, fill, "middle",
                             ' font-size="11" pointer-events="none"')
                break


def draw_axis(picture, begin, end, bottom, x_of):
    distance = tick_distance((end - begin) / 1000, 12)
    digits = 0 if distance >= 1 else len(f"{distance:g}") - 2
    for i in range(int((end - begin) / 1000 / distance + 1e-6) + 1):
        x = x_of(begin + i * distance * 1000)
        picture.line(x, TOP, x, bottom, GRID)
        picture.line(x, bottom, x, bottom + 5, SOFT)
        picture.text(x, bottom + 19, f"{i * distance:.{digits}f}", SOFT, "middle")
    picture.line(LEFT, bottom, WIDTH - RIGHT, bottom, SOFT)
    picture.text(LEFT - 10, bottom + 19, "time, ms", SOFT, "end")


def draw_legend(picture, y, kinds):
    x = LEFT
    for kind in (kind for kind in COLORS if kind in kinds):
        for shade, color in enumerate(COLORS[kind]):
            picture.rect(x + 15 * shade, y - 11, 14, 14, color)
        picture.text(x + 36, y, LABELS[kind])
        x += 52 + 7 * len(LABELS[kind])
    picture.triangle(x + 5, y - 9)
    picture.text(x + 16, y, "verdict on the gradient")
    picture.text(WIDTH - RIGHT, y, "dark and light: even and odd blocks", SOFT, "end")


def svg(events, other, first_step, count, rank):
    if not any("pid" in e and e["pid"] == rank for e in events):
        raise Unusable(f"the trace has no rank {rank}; choose another by --rank")
    events = [e for e in events if e["pid"] == rank]
    rows = rows_of(events)
    marks = boundaries_of(events, other)
    if len(marks) < 2 or not rows:
        raise Unusable("the trace has no whole step; trace more of the run")
    begins = dict(marks)
    first = marks[0][0] if first_step is None else first_step
    if first not in begins or first + count not in begins or count < 1:
        raise Unusable(f"steps {first} to {first + count - 1} are asked for, and the trace has {marks[0][0]} to "
                       f"{marks[-1][0] - 1}; choose others by --first_step and --steps")
    begin, end = begins[first], begins[first + count]

    def x_of(at):
        return LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - RIGHT)

    place = {tid: TOP + GAP / 2 + i * (ROW + GAP) for i, tid in enumerate(rows)}
    bottom = TOP + len(rows) * (ROW + GAP)
    spans = spans_in(events, rows, begin, end)
    picture = Picture(WIDTH, bottom + 60)
    for tid, name in rows.items():
        picture.rect(LEFT, place[tid], WIDTH - LEFT - RIGHT, ROW, BACK)
        picture.text(LEFT - 10, place[tid] + ROW / 2 + 4, name, anchor="end")
    draw_axis(picture, begin, end, bottom, x_of)
    draw_spans(picture, spans, place, x_of)
    for step in range(first, first + count + 1):
        x = x_of(begins[step])
        picture.line(x, TOP - 22, x, bottom, INK, ' stroke-dasharray="4 3"')
        if step < first + count:
            picture.text(x + 5, TOP - 12, f"step {step}", more=' font-weight="bold"')
    for event in events:
        if event["ph"] == "i" and event["name"].startswith("verdict") and begin < event["ts"] < end:
            picture.triangle(x_of(event["ts"]), TOP - 10, event["name"])
    draw_legend(picture, bottom + 46, {kind for _, kind, _, _, _ in spans})
    return picture.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--first_step", type=int, help="its number in the run; default: the trace's first one")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    try:
        sys.stdout.write(svg(*read_trace(arguments.trace), arguments.first_step, arguments.steps, arguments.rank))
    except Unusable as error:
        sys.stderr.write(f"error: [trace] {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
