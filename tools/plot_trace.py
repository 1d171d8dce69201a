#!/usr/bin/env python3
"""Draws some steps of a trace.json.gz (finetune_zero3 --trace) as an SVG: what the compute lane, the optimizer's threads
and the copies did, one row each, under one axis of time.

    python3 tools/plot_trace.py runs/demo-.../trace.json.gz --first_step 20 --steps 2 > overlap.svg
"""
import argparse
import gzip
import json
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, ROW, GAP, TOP = 1180, 92, 26, 8, 44
COLORS = {  # by the first word of a span's name: even segments, odd segments
    "forward": ("#9ecae1", "#c6dbef"),
    "backward": ("#3182bd", "#6baed6"),
    "update": ("#fd8d3c", "#fdae6b"),
    "copy": ("#a1d99b", "#a1d99b"),
}


def read_events(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        data = json.load(file)
    return data["traceEvents"] if isinstance(data, dict) else data


def rows_of(events):
    """Thread id -> row label, compute first, then the optimizer, then what moves gradients and weights: an accelerator's
    streams if there are any, else the pool that copies between slots."""
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    streams = {"stream gradients to host": "gradients", "stream gathers to device": "weights"}
    rows = {}
    for kind in ("compute", "adam"):
        for tid, name in sorted(names.items(), key=lambda item: item[1]):
            if name == kind or name.startswith(kind + "."):
                rows[tid] = name
    moved = {tid: streams[name] for tid, name in names.items() if name in streams}
    copies = {tid: name for tid, name in names.items() if name.split(".")[0] == "copy"}
    rows.update(sorted((moved or copies).items(), key=lambda item: item[1]))
    return rows


def steps_of(events):
    return sorted(e["ts"] for e in events if e["ph"] == "i" and e["name"] == "step")


def spans_in(events, rows, begin, end):
    """Those of the rows, in time; pieces of one thing that follow each other closely are one."""
    apart = (end - begin) / WIDTH / 2
    merged = {}
    for tid, kind, name, start, stop in sorted(all_spans(events, rows, begin, end), key=lambda span: span[3]):
        last = merged.setdefault(tid, [])
        if last and last[-1][2] == name and start - last[-1][4] < apart:
            last[-1][4] = max(stop, last[-1][4])
        else:
            last.append([tid, kind, name, start, stop])
    return [span for row in merged.values() for span in row]


def all_spans(events, rows, begin, end):
    for event in events:
        if event["ph"] != "X" or event["tid"] not in rows:
            continue
        start, stop = event["ts"], event["ts"] + event.get("dur", 0)
        kind = event["name"].split(" ")[0]
        if kind == "chunk" and rows[event["tid"]].startswith("link"):  # a copy or an addition
            kind = "copy"
        if kind in COLORS and stop > begin and start < end:
            yield event["tid"], kind, event["name"], max(start, begin), min(stop, end)


def svg(events, first_step, count):
    rows = rows_of(events)
    steps = steps_of(events)
    if len(steps) < first_step + count:
        sys.exit(f"error: [trace] it has {len(steps)} steps, and {first_step + count} are asked for; "
                 "choose others by --first_step and --steps")
    begin = steps[first_step - 1]
    end = steps[first_step + count - 1]
    scale = (WIDTH - LEFT - 10) / (end - begin)
    place = {tid: TOP + i * (ROW + GAP) for i, tid in enumerate(rows)}
    height = TOP + len(rows) * (ROW + GAP) + 44
    units = {}
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
    for tid, name in rows.items():
        y = place[tid]
        out.append(f'<text x="{LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 10}" height="{ROW}" fill="#f4f4f4"/>')
    for tid, kind, name, start, stop in spans_in(events, rows, begin, end):
        color = COLORS[kind][units.setdefault(name.split(" ", 1)[-1], len(units)) % 2]
        x, width = LEFT + (start - begin) * scale, max(0.3, (stop - start) * scale)
        out.append(f'<rect x="{x:.2f}" y="{place[tid]}" width="{width:.2f}" height="{ROW}" fill="{color}">'
                   f"<title>{escape(name)}: {(stop - start) / 1000:.2f} ms</title></rect>")
    for number, at in enumerate(steps[first_step - 1:first_step + count], first_step):
        x = LEFT + (at - begin) * scale
        out.append(f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP - 12}" y2="{height - 40}" stroke="#555" stroke-dasharray="4 3"/>')
        if number < first_step + count:
            out.append(f'<text x="{x + 4:.2f}" y="{TOP - 16}">step {number}</text>')
    for event in events:
        if event["ph"] == "i" and event["name"].startswith("verdict") and begin < event["ts"] < end:
            x = LEFT + (event["ts"] - begin) * scale
            out.append(f'<path d="M{x - 4:.2f} {TOP - 8} h8 l-4 7 z" fill="#333"><title>{escape(event["name"])}</title></path>')
    legend = LEFT
    for kind, (color, _) in COLORS.items():
        out.append(f'<rect x="{legend}" y="{height - 28}" width="14" height="14" fill="{color}"/>')
        out.append(f'<text x="{legend + 20}" y="{height - 16}">{kind}</text>')
        legend += 110
    out.append(f'<path d="M{legend + 3} {height - 25} h8 l-4 7 z" fill="#333"/>')
    out.append(f'<text x="{legend + 20}" y="{height - 16}">verdict on the gradient</text>')
    out.append(f'<text x="{WIDTH - 10}" y="{height - 16}" text-anchor="end">{(end - begin) / 1000:.0f} ms in all</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--first_step", type=int, default=2, help="counted from 1")
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    sys.stdout.write(svg(read_events(arguments.trace), arguments.first_step, arguments.steps))


if __name__ == "__main__":
    main()
