#!/usr/bin/env python3
"""./tandem test --gpu --queue Q1[,Q2]: items of the GPU queue within their minutes, into one folder with one record.

Each item has its most valuable step first. A step that fails or hangs is ended and stops no other one; a step for which no
time is left is left out. Before the first step the frame looks at the machine and the programs. --rehearse runs the same steps
on the CPU with tiny models and stand-ins for what needs a GPU. Invariant: record.md is written anew after each step, so that a
machine that goes away leaves all that was measured.
Results lie in --out: record.md, log.txt (all output), table.md and raw.jsonl (comparisons), trace_NAME.txt.
Exit codes: 0 every step passed, 1 a step did not, 2 wrong flags, 3 no GPU or one in use, 4 the programs cannot run here.
"""

import argparse
import dataclasses
import datetime
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import frame
import kit as kit_module
import marks
import processes
import rehearsal
from items import ITEMS
from kit import Kit, Shape, line_of
from steps import FAILURES, Await, Start, Step

LEAST_S = 5  # a step needs that much
LOG_CHARS = 3_000_000


@dataclasses.dataclass
class Result:
    item: str
    name: str
    command: str
    status: str  # passed, FAILED, or why it was left out
    seconds: int
    figure: str
    tail: str = ""


class Session:
    """The items that run one after another, and the record of them."""

    def __init__(self, kit, facts):
        self.kit, self.facts = kit, facts
        self.results, self.beside = [], {}

    def run_item(self, name, seconds):
        end = time.monotonic() + seconds
        try:
            for step in ITEMS[name].steps(self.kit):
                left = end - time.monotonic()
                if isinstance(step, Start):
                    self.start(step)
                elif isinstance(step, Await):
                    self.note(name, self.awaited(step, left))
                else:
                    self.note(name, self.ran(step, left))
        finally:
            for started in self.beside.values():
                processes.end_group(started[0])
            self.beside.clear()
            shutil.rmtree(self.kit.scratch, ignore_errors=True)

    def start(self, step):
        output = tempfile.TemporaryFile("w+", errors="replace")
        process = processes.start(step.command, output, output, self.kit.environment(step.environment), kit_module.ROOT)
        self.beside[step.name] = process, output, step, time.monotonic()

    def awaited(self, step, left):
        process, output, started, begin = self.beside.pop(step.name)
        until = time.monotonic() + max(0, min(step.seconds, left))
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        processes.end_group(process)
        output.seek(0)
        text = output.read()
        self.log(started.command, text)
        ended = processes.Ended(0, text, "", time.monotonic() - begin)  # an end by us is no failure: the figure decides
        return self.judged(Step(step.name, step.seconds, started.command, step.figure), ended)

    def ran(self, step, left):
        seconds = min(step.seconds, left)
        absent = step.absent or (f"{left:.0f} s left" if seconds < LEAST_S else "")
        if absent:
            return Result("", step.name, line_of(step.command), f"left out: {absent}", 0, "")
        print(f"queue: {step.name}: at most {seconds:.0f} s", flush=True)
        ended = processes.run(step.within(seconds), seconds, self.kit.environment(step.environment), kit_module.ROOT)
        self.log(step.command, ended.out + ended.err)
        return self.judged(step, ended)

    def judged(self, step, ended):
        holds, output = ended.code == 0, ended.out + ended.err
        try:
            figure = step.figure(output)
        except FAILURES as short:
            holds, figure = False, str(short)
        if step.marks and not self.kit.rehearse:
            figure += "\n" + "\n".join(marks.judged(step.marks, marks.rows_of(self.kit.out / "raw.jsonl", step.name)))
        is_told = holds or figure.startswith(("|", "- "))  # a comparison has a line for each side that fell short
        tail = "" if is_told else f"{ended.why()}\n" + "\n".join(line[:300] for line in output.splitlines()[-6:])
        return Result("", step.name, line_of(step.command), "passed" if holds else "FAILED", round(ended.seconds), figure, tail)

    def log(self, command, text):
        with (self.kit.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"=== {line_of(command)}\n{text[-LOG_CHARS:]}\n")

    def note(self, item, result):
        result.item = item
        self.results.append(result)
        print(f"queue: {item}: {result.name}: {result.status} ({result.seconds} s)", flush=True)
        (self.kit.out / "record.md").write_text(self.page(), encoding="utf-8")

    def page(self):
        """The record: facts, each item with its passes, its steps as a table, then what each printed."""
        what = "A rehearsal of the GPU queue without a GPU: no figure is a measurement" if self.kit.rehearse else "GPU queue"
        text = [f"# {what}, {datetime.date.today()}", "", *self.facts]
        for name in dict.fromkeys(result.item for result in self.results):
            item, mine = ITEMS[name], [result for result in self.results if result.item == name]
            text += ["", f"## {name} {item.title}", f"Passes: {item.passes}", "", f"Falls back to: {item.falls_back}.", "",
                     "| step | | s |", "|---|---|---|"]
            text += [f"| {result.name} | {result.status} | {result.seconds} |" for result in mine]
            for result in mine:
                text += ["", f"### {name}: {result.name}", *block(result)]
        return self.kit.shown("\n".join(text) + "\n")

    def failed(self):
        return [result.name for result in self.results if result.status == "FAILED"]


def block(result):
    """A table stays one; all else is shown as it was printed."""
    rows = [line for line in result.figure.splitlines() if line.startswith(("|", "- "))]
    tail = ["```", *result.tail.splitlines(), "```"] if result.tail else []
    if rows:
        first = next((at for at, line in enumerate(rows) if line.startswith("|")), 0)
        last = max((at for at, line in enumerate(rows) if line.startswith("|")), default=-1)
        return [*rows[:first], "", *rows[first:last + 1], "", *rows[last + 1:], *tail]
    return [f"`{result.command}`", *(["```", *result.figure.splitlines(), "```"] if result.figure else []), *tail]


def items_of(text):
    names = [name.upper() for name in text.split(",") if name]
    wrong = [name for name in names if name not in ITEMS]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: the items are {', '.join(ITEMS)}")
    return names


def listed():
    rows = [f"  {name}  {item.seconds:>4} s  {item.title}" for name, item in ITEMS.items()]
    return "\n".join(["The items:", *rows])


def python_of(pack):
    """An interpreter with torch: the tree's, the one beside which the pack was made where that is here, or this one."""
    beside_pack = frame.packed(pack).get("python", "")
    known = [str(kit_module.ROOT / ".venv/bin/python"), beside_pack]
    return next((path for path in known if Path(path).is_file()), sys.executable)


def parsed(argv):
    parser = argparse.ArgumentParser(prog="./tandem test --gpu", description=__doc__, epilog=listed(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queue", type=items_of, metavar="Q1[,Q2]", nargs="?",
                        help="the items, in this order; default of a rehearsal: all")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny models and stand-ins")
    parser.add_argument("--seconds", type=float, help="for each item, instead of its own")
    parser.add_argument("--model", help="a config of tools/gpu/configs, for Q1, Q4 and Q5; likewise --rows, --length, --steps")
    for name in ("rows", "length", "steps"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "gpu_out")), help="folder of the results")
    parser.add_argument("--python", help="an interpreter whose torch the programs use")
    flags = parser.parse_args(argv)
    if not flags.queue and not flags.rehearse:
        parser.error("--queue names no item")
    if flags.model and not (kit_module.HERE / "configs" / f"{flags.model}.json").is_file():
        parser.error(f"--model {flags.model}: no such config in tools/gpu/configs")
    return flags


def prepare(flags, work):
    kit = Kit(flags.out.resolve(), work, "", flags.rehearse, Shape(flags.model, flags.rows, flags.length, flags.steps))
    kit.python = flags.python or python_of(kit.pack)
    work.mkdir(parents=True, exist_ok=True)
    if kit.rehearse:
        rehearsal.write_stand_ins(work / "stand_ins")
        rehearsal.write_tiny_configs(work / "tiny")
        os.environ["PATH"] = f"{work / 'stand_ins'}:{os.environ['PATH']}"
    return kit


def run(flags, work):
    kit, names = prepare(flags, work), flags.queue or list(ITEMS)
    begin = time.monotonic()
    try:
        facts = frame.facts(kit, {program for name in names for program in ITEMS[name].programs})
    except frame.Stop as stop:
        print(f"queue: {kit.shown(str(stop))}", file=sys.stderr)
        return stop.code
    print("\n".join(kit.shown(fact) for fact in facts), flush=True)
    kit.out.mkdir(parents=True, exist_ok=True)
    session = Session(kit, [*facts, f"`./tandem test --gpu {line_of(sys.argv[1:])}`"])
    for name in names:
        session.run_item(name, flags.seconds or ITEMS[name].seconds)
    failed = session.failed()
    ending = f"FAILED: {', '.join(failed)}" if failed else "all passed"
    print(f"queue: {kit.out / 'record.md'}: {time.monotonic() - begin:.0f} s: {ending}")
    return 1 if failed else 0


def main(argv):
    flags = parsed(argv)
    if flags.rehearse:
        with tempfile.TemporaryDirectory(prefix="tandem_rehearsal_") as folder:
            return run(flags, Path(folder).resolve())
    return run(flags, Path(tempfile.gettempdir()) / f"tandem_gpu_{os.getuid()}")  # a second call finds it filled


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
