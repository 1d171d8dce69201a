#!/usr/bin/env python3
"""Each header and source of the layers compiles alone: compile_alone.py BUILD [--all].

A build that compiles several sources at a time (cmake/Unity.cmake) does not see an include that one of them lacks. Here those
are compiled alone that changed since the merge base with origin/main (as for clang-tidy, lint.py; --all: every one), without
code being made, by the layer's commands in BUILD/compile_commands.json. Files of LibTorch's layers get its precompiled header
first, as they do in the build: parsing LibTorch anew for each takes minutes. Files `-inl.hpp` are parts of one source
(Highway's way) and are left out. Exit code 1 if one does not compile.
"""

import concurrent.futures
import os
import shlex
import subprocess
import sys
from pathlib import Path

import lint

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["runtime", "actors", "engine", "models", "trainer"]
LIBTORCH = ["engine", "models", "trainer"]


def files_of(layer, changed):
    """The headers and sources of a layer's library, those of `changed` alone unless that is None."""
    found = {str(path.relative_to(ROOT)) for ending in ("*.hpp", "*.cpp") for path in (ROOT / layer).rglob(ending)}
    return sorted(name for name in found if not name.endswith("-inl.hpp") and (changed is None or name in changed))


def command_of(layer, entries):
    """The command of a source of this layer's library, without its source, object and (where no LibTorch is) its
    precompiled header; None: the build has no such layer."""
    for entry in entries:
        if not entry["file"].startswith(f"{ROOT}/{layer}/") or f"tandem_{layer}.dir" not in entry["command"]:
            continue
        words = shlex.split(entry["command"])
        words = words[: words.index("-o")]
        at = words.index("-include-pch") - 1 if "-include-pch" in words else len(words)
        precompiled = at + 3 < len(words) and Path(words[at + 3]).is_file()
        kept = words if layer in LIBTORCH and precompiled else words[:at]
        return [word for word in kept if word != "-Winvalid-pch"]
    return None


def compile_alone(name, of_headers, of_sources, folder):
    """A header by the layer's command, a source by its own."""
    command = [*of_headers, "-x", "c++", "-"] if name.endswith(".hpp") else shlex.split(of_sources[name])
    run = subprocess.run([*command, "-fsyntax-only"], cwd=folder, capture_output=True, text=True, input=f'#include "{name}"\n')
    return name, run.returncode, run.stderr


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--all"]):
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    lines = None if sys.argv[2:] else lint.changed_lines()
    changed = None if lines is None else set(lines)
    build = Path(sys.argv[1]).resolve()
    entries = lint.commands(build / "compile_commands.json")
    of_sources = {os.path.relpath(entry["file"], ROOT): entry["command"] for entry in entries}
    faults = 0
    for layer in LAYERS:
        command = command_of(layer, entries)
        if command is None:
            print(f"{layer}: not built here")
            continue
        names = [name for name in files_of(layer, changed) if name.endswith(".hpp") or name in of_sources]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, code, errors in pool.map(lambda name: compile_alone(name, command, of_sources, build), names):
                if code != 0:
                    print(f"{name} does not compile alone:\n{errors}")
                    faults += 1
        print(f"{layer}: {len(names)} files compiled alone")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
