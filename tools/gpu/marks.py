"""Pass marks of an item that the rows of a comparison can be held to.

Invariant: a mark without figures is neither met nor missed, and says so; a mark decides nothing but a line of the record.
"""

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Callable


@dataclasses.dataclass(frozen=True)
class Mark:
    text: str
    met: Callable[[dict], bool | None]  # of {side: [figures of its runs]}; None: there is no figure


def speed(rows, side):
    return statistics.median(run["tokens_per_s"] for run in rows[side])


def at_least(side, factor, *others):
    """The side is `factor` times as fast as the best of the others."""

    def met(rows):
        there = [speed(rows, other) for other in others if other in rows]
        return speed(rows, side) >= factor * max(there) if side in rows and there else None

    return Mark(f"{side}: at least {factor} x the best of {', '.join(others)}", met)


def fast(side, tokens_per_s):
    return Mark(f"{side}: at least {tokens_per_s:,} tokens/s",
                lambda rows: speed(rows, side) >= tokens_per_s if side in rows else None)


def steady(side, percent):
    """The runs of a side lie within that share of their median."""

    def met(rows):
        runs = [run["tokens_per_s"] for run in rows.get(side, [])]
        return max(runs) - min(runs) <= percent / 100 * statistics.median(runs) if len(runs) > 1 else None

    return Mark(f"{side}: runs within {percent} % of each other", met)


def hidden(side, percent):
    """The exposed part of the optimizer is at most that share of the step."""

    def met(rows):
        runs = [run for run in rows.get(side, []) if "exposed_optimizer_ms" in run]
        return all(run["exposed_optimizer_ms"] <= percent / 100 * run["ms"] for run in runs) if runs else None

    return Mark(f"{side}: exposed_optimizer_ms at most {percent} % of the step", met)


def predicted(side, percent):
    """The step that the placement's model expected lies within that share of the measured one."""

    def met(rows):
        runs = [run for run in rows.get(side, []) if run.get("predicted_ms")]
        return all(abs(run["predicted_ms"] - run["ms"]) <= percent / 100 * run["ms"] for run in runs) if runs else None

    return Mark(f"{side}: predicted_ms within {percent} % of the step", met)


def first_losses(low, high):
    """Random weights know nothing: the first loss of every side is the logarithm of the vocabulary."""

    def met(rows):
        first = [run["losses"][0] for runs in rows.values() for run in runs if run["losses"]]
        return all(low <= loss <= high for loss in first) if first else None

    return Mark(f"every side: first loss from {low} to {high}", met)


def rows_of(raw: Path, title):
    """{side: [figures of its runs]} of the lines that pair.py wrote under this title."""
    rows = {}
    for line in raw.read_text(encoding="utf-8").splitlines() if raw.exists() else []:
        run = json.loads(line)
        if run["title"] == title:
            for _, figures in run["figures"]:
                rows.setdefault(run["side"], []).append(figures)
    return rows


def judged(marks, rows):
    """A line for each mark."""
    words = {True: "met", False: "**MISSED**", None: "no figure"}
    return [f"- mark: {mark.text}: {words[mark.met(rows)]}" for mark in marks]
