"""Reads the figures of a comparison out of what its sides print, and makes the table of them.

Invariant: a figure keeps the name under which its program printed it; nothing is estimated where a program says nothing.
"""

import json
import re
import statistics

from model_flops import flops_of_token, read_config

HEAD = ["side", "runs", "tokens/s", "ms", "first over this", "TFLOPS executed", "GPU GiB", "host GiB", "losses"]
# Counters that stand below the table where a program prints them.
MORE = ["predicted_ms", "overlap_efficiency", "optimizer_ms", "exposed_optimizer_ms", "exposed_gather_ms",
        "exposed_reduce_ms", "exposed_activation_ms", "grad_norm", "misses", "skips", "peak_MiB", "device_MiB", "norms", "sdpa"]
TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def documents(text):
    """Yields the JSON objects that begin at a line's start; text around them is passed over."""
    decoder, at = json.JSONDecoder(), 0
    begin = re.compile(r"^\{", re.MULTILINE)
    while (found := begin.search(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, found.start())
        except json.JSONDecodeError:
            at = found.end()
            continue
        yield value


def tflops_of(entry, command):
    """Executed TFLOPS of an entry of ours by the peers' formula; None where its shape or config is not to be read."""
    shape = re.search(r"/(\d+)x(\d+)/", entry["name"])
    config = re.search(r"--config[= ](\S+)", command)
    if shape is None or config is None:
        return None
    executed, _ = flops_of_token(read_config(config[1]), int(shape[2]), "/checkpointing" in entry["name"])
    return executed * entry["tokens_per_s"] / 1e12


def figures_of_entry(entry, command):
    """(what follows the side's name in its row, figures) of one entry of Google Benchmark."""
    name = re.sub(r"/(iterations|min_time|real_time|repeats|manual_time).*", "", entry["name"])
    return name, {"tokens_per_s": entry["tokens_per_s"], "ms": entry["real_time"] * TO_MS[entry["time_unit"]],
                  "tflops": tflops_of(entry, command), **{key: entry[key] for key in MORE if key in entry},
                  "losses": [entry[key] for key in sorted(entry) if re.fullmatch(r"loss_\d+", key)]}


def figures_of_peer(line):
    """The same of a peer's JSON line."""
    norms = [norm for norm in line.get("grad_norms", []) if norm is not None]
    return {"tokens_per_s": line["tokens_per_s"], "ms": line["ms_median"], "tflops": line.get("tflops_executed"),
            "losses": line["losses"], "norms": norms or None, "sdpa": line.get("sdpa")}


def figures(text, command):
    """([(row's suffix, figures)], [errors]) of a command's output."""
    found, errors = [], []
    for document in documents(text):
        if "peer" in document and "error" in document:
            errors.append(document["error"])
        elif "peer" in document and "tokens_per_s" in document:
            found.append(("(stand-in)" if document.get("stand_in") else "", figures_of_peer(document)))
        for entry in document.get("benchmarks", []):
            if entry.get("error_occurred"):
                errors.append(f"{entry['name']}: {entry.get('error_message')}")
            elif "tokens_per_s" in entry and entry.get("run_type", "iteration") == "iteration":
                found.append(figures_of_entry(entry, command))
    return found, errors


def spread(values, form):
    """The median, with the least and the most where there are several."""
    if not values:
        return "-"
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}} .. {max(values):{form}})"


def short(value):
    """A number to five digits; whatever is none, as it is."""
    return float(f"{value:.5g}") if isinstance(value, float) else value


def most(runs, key):
    values = [run[key] for run in runs.values() if run.get(key) is not None]
    return format(max(values), ".1f") if values else "-"


def table(rows):
    """The lines of a markdown table of {row: {round: figures}}; the ratio is the first row's tokens/s over this row's in the
    same round."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    first = next(iter(rows.values()), {})
    for name, runs in rows.items():
        both = [] if name.endswith("(stand-in)") else [at for at in runs if at in first]
        ratios = [first[at]["tokens_per_s"] / runs[at]["tokens_per_s"] for at in both]
        losses = next(iter(runs.values()))["losses"]
        cells = [name, str(len(runs)), spread([run["tokens_per_s"] for run in runs.values()], ",.0f"),
                 spread([run["ms"] for run in runs.values()], ",.1f"), spread(ratios, ".2f"), most(runs, "tflops"),
                 most(runs, "device_gib"), most(runs, "host_gib"), f"{losses[0]:.4f} .. {losses[-1]:.4f}" if losses else "-"]
        lines.append("| " + " | ".join(cells) + " |")
    more = []
    for name, runs in rows.items():
        last = list(runs.values())[-1]
        said = {key: short(last[key]) for key in MORE if last.get(key) is not None}
        more += [f"- {name}: `{json.dumps(said)}`"] if said else []
    return lines + ([""] if more else []) + more
