#!/usr/bin/env python3
"""Writes docs/flags.md, every flag of every command, out of what the programs' --help prints.

    python3 tools/flags_page.py build/release/bin [--check]

--check: exit 1 where the page differs from what the programs print.
"""
import argparse
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import page_block

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/flags.md"
COMMAND = "python3 tools/flags_page.py build/release/bin"
COLUMN = 30  # of a flag's text in --help
SHARED = {"-h,--help", "--version"}
# The command of ./tandem -> program and arguments. The trainer comes first: others share its flags.
COMMANDS = {"train": ["finetune_zero3"], "plan": ["tandem", "plan"], "config": ["tandem", "config"], "launch": ["tandem", "launch"],
            "generate": ["tandem", "generate"], "inspect": ["tandem", "inspect"], "report": ["tandem", "report"],
            "top": ["tandem", "top"], "checkpoint show": ["tandem", "checkpoint", "show"],
            "checkpoint verify": ["tandem", "checkpoint", "verify"], "checkpoint gather": ["tandem", "checkpoint", "gather"],
            "convert": ["tandem", "convert"], "merge": ["tandem", "merge"], "parity": ["tandem", "parity"],
            "logits": ["tandem", "logits"], "tokenize": ["tandem", "tokenize"], "schedule": ["tandem", "schedule"],
            "doctor": ["tandem", "doctor"], "cifar10": ["cifar10"], "cifar10-tutorial": ["cifar10_tutorial"]}
HEAD = re.compile(r"(?P<names>-\S+?)(\{false\})?( (?P<type>[A-Z]+)(:(?P<range>\{[^}]*\}|[A-Z]+ in \[[^\]]*\]))?(=(?P<default>\S*))?"
                  r"(?P<rest>.*))?")


def flags_of(text):
    """[group, names, range and default, meaning] of each flag in what --help prints."""
    group, flags = "", []
    for line in text.split("\n"):
        if re.match(r"  -", line):
            is_split = len(line) > COLUMN and line[COLUMN - 2:COLUMN] == "  "
            head, meaning = (line[:COLUMN], line[COLUMN:]) if is_split else (line, "")
            flags.append([group, head.strip(), meaning.strip()])
        elif line.startswith(" " * COLUMN) and flags and not flags[-1][1].endswith("|"):
            flags[-1][2] = f"{flags[-1][2]} {line.strip()}".strip()
        elif re.match(r"\S.*:$", line):
            group = line.rstrip(":").replace("Options", "")
    for group, head, meaning in flags:
        found = HEAD.fullmatch(head)
        if found is None:
            raise ValueError(f"no flag: {head}")
        limits = re.sub(r"^[A-Z]+ in ", "", found["range"] or "").strip("{}").replace(",", ", ")
        needed = "needed" if "REQUIRED" in (found["rest"] or "") else ""
        yield group, found["names"], found["default"] or needed, f"{meaning} ({limits})" if limits else meaning


def cell(text):
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


def row(names, default, meaning):
    value = f"`{default}`" if default not in ("", "needed") else default
    return f"| {', '.join(f'`{name}`' for name in names.split(','))} | {value} | {cell(meaning)} |"


def section(command, flags, of_train):
    """The lines of one command; a flag that says the same in ./tandem train is only named."""
    own = [flag for flag in flags if flag[1] not in SHARED and (command == "train" or flag[1:] not in of_train)]
    shared = [flag[1].split(",")[0] for flag in flags if flag[1] not in SHARED and flag not in own]
    lines = [f"## ./tandem {command}"]
    if own:
        lines += ["| flag | default | meaning |", "|---|---|---|"]
    group = ""
    for flag in own:
        if flag[0] != group:
            group = flag[0]
            lines.append(f"| **{cell(group)}** | | |")
        lines.append(row(*flag[1:]))
    if shared:
        names = "As in `./tandem train`: " + ", ".join(f"`{name}`" for name in shared) + "."
        lines += [""] * bool(own) + textwrap.wrap(names, 100, break_long_words=False, break_on_hyphens=False)
    return lines + ["No flags."] * (not own and not shared) + [""]


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def made(programs):
    lines, of_train = [], set()
    listed = {command.split()[0] for command in COMMANDS} | {"completion"}
    absent = set(re.findall(r"^  ([a-z][\w-]*) +\S", output_of(programs / "tandem", "help"), re.MULTILINE)) - listed
    if absent:
        raise ValueError(f"tandem help has {', '.join(sorted(absent))}, which COMMANDS here has not")
    for command, (program, *arguments) in COMMANDS.items():
        flags = list(flags_of(output_of(programs / program, *arguments, "--help")))
        of_train = of_train or {flag[1:] for flag in flags}
        lines += section(command, flags, of_train)
    before, _, after = page_block.parts(PAGE.read_text(encoding="utf-8"), COMMAND)
    return before + "\n".join(lines) + after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built programs")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the page differs")
    flags = parser.parse_args()
    text = made(flags.programs.resolve())
    if not flags.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"docs/flags.md differs from what --help prints; {COMMAND} writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
