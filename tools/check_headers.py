#!/usr/bin/env python3
"""Every header of the layers compiles alone: check_headers.py BUILD [--all].

A header that some source or test of its layer includes before anything else has been compiled alone by the build; of the
others those are compiled here that changed since the merge base with origin/main (as for clang-tidy, lint.py; --all: every
one), without code being made, by the layer's commands in BUILD/compile_commands.json. Headers of LibTorch's layers get its
precompiled header first, as every source does: parsing LibTorch anew for each takes minutes.
`-inl.hpp` are parts of one source (Highway's way) and no headers. Exit 1 if one does not compile.
"""

import concurrent.futures
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import lint

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["runtime", "actors", "engine", "models", "trainer"]
LIBTORCH = ["engine", "models", "trainer"]
FIRST_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def first_includes(layer):
    """Yields the header that each source and test of a layer includes first."""
    for folder in [layer, f"tests/{layer}"]:
        for source in (ROOT / folder).rglob("*.cpp"):
            if "compile_fail" in source.parts:
                continue
            found = FIRST_INCLUDE.search(source.read_text(encoding="utf-8"))
            if found:
                yield found.group(1)


def left_over(layer, changed):
    """How many headers the layer has; those to compile, of `changed` (None: of all)."""
    headers = {str(path.relative_to(ROOT)) for path in (ROOT / layer).rglob("*.hpp")}
    left = headers - set(first_includes(layer))
    if changed is not None:
        left &= changed
    return len(headers), sorted(h for h in left if not h.endswith("-inl.hpp"))


def command_of(layer, database):
    """The command of a source of this layer's library, without its source, object and (where no LibTorch is) its
    precompiled header; None: the build has no such layer."""
    for entry in database:
        if not entry["file"].startswith(f"{ROOT}/{layer}/") or f"tandem_{layer}.dir" not in entry["command"]:
            continue
        words = shlex.split(entry["command"])
        words = words[: words.index("-o")]
        at = words.index("-include-pch") - 1 if "-include-pch" in words else len(words)
        precompiled = at + 3 < len(words) and Path(words[at + 3]).is_file()
        kept = words if layer in LIBTORCH and precompiled else words[:at]
        return [word for word in kept if word != "-Winvalid-pch"]
    return None


def compile_alone(command, folder, header):
    run = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], cwd=folder, capture_output=True, text=True,
                         input=f'#include "{header}"\n')
    return header, run.returncode, run.stderr


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--all"]):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    lines = None if sys.argv[2:] else lint.changed_lines()
    changed = None if lines is None else set(lines)
    build = Path(sys.argv[1]).resolve()
    database = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    faults = 0
    for layer in LAYERS:
        command = command_of(layer, database)
        if command is None:
            print(f"{layer}: not built here")
            continue
        total, left = left_over(layer, changed)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for header, code, errors in pool.map(lambda header: compile_alone(command, build, header), left):
                if code != 0:
                    print(f"{header} does not compile alone:\n{errors}")
                    faults += 1
        print(f"{layer}: {total} headers, {len(left)} of them compiled here")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
