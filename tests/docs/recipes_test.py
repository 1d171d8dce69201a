#!/usr/bin/env python3
"""The diffs of docs/extend.md apply to this tree; with --build, what each adds builds and runs.

    python3 tests/docs/recipes_test.py [--build]

Each section of the page has one ```diff block, commands behind it, and what they print (as in readme_test.py). Without --build
each diff is applied to copies of the files that it names. With it each is applied to a copy of the tree, the commands run there,
and the diff is taken back: minutes with a ccache that knows this tree, a quarter of an hour without.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import readme_test

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/extend.md"
NOT_COPIED = {"build", ".git", ".venv", ".cache", "runs"}  # folders at the root that no file of the tree lies in


def left_out(folder, names):
    """What copytree() leaves out of `folder`."""
    return {name for name in names if name == "__pycache__" or (Path(folder) == ROOT and name in NOT_COPIED)}


def recipes():
    """(heading, the diff, the commands, the output) of each section with a diff."""
    sections = {}
    for heading, language, lines, _ in readme_test.blocks(PAGE.read_text(encoding="utf-8")):
        sections.setdefault(heading, {})[language] = lines
    for heading, found in sections.items():
        yield heading, "\n".join(found["diff"]) + "\n", readme_test.commands(found["sh"]), found["text"]


def apply(folder, diff, *flags):
    """What git says against it; empty where it applies."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent), "GIT_DIR": str(folder / "none")}
    done = subprocess.run(["git", "apply", *flags, "-"], input=diff, cwd=folder, env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode else ""


def applies(diff):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for path in re.findall(r"^--- a/(\S+)$", diff, re.MULTILINE):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
        fault = apply(folder, diff)
        new = re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE)
        return fault or "".join(f"{path} is not made\n" for path in new if not (folder / path).exists())


def runs(tree, diff, commands, wanted):
    """What went wrong with the diff in a whole tree."""
    fault = apply(tree, diff)
    if fault:
        return fault
    output = ""
    try:
        for command in commands:
            done = subprocess.run(["bash", "-c", command], cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            output += "" if command.startswith("ninja") else done.stdout
            if done.returncode:
                return f"exit code {done.returncode}: {command}\n{done.stdout}"
    finally:
        fault = apply(tree, diff, "-R")
    found = readme_test.difference(wanted, output)
    return fault or (f"{found}\n--- printed was:\n{output}---" if found else "")


def as_here():
    """The options of this tree's own build that change a compiler's flags: with the same ones, ccache has the objects."""
    cache = ROOT / "build/release/CMakeCache.txt"
    lines = cache.read_text(encoding="utf-8").splitlines() if cache.exists() else []
    return [f"-D{line}" for line in lines if line.startswith("TANDEM_WERROR:")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true", help="build and run what each adds, too")
    flags = parser.parse_args()
    faults = tried = 0
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name).resolve() / "tandem"
        if flags.build:
            shutil.copytree(ROOT, tree, ignore=left_out, symlinks=True)
            (tree / ".venv").symlink_to(ROOT / ".venv")
            subprocess.run(["cmake", "--preset", "release", *as_here()], cwd=tree, check=True)
        for heading, diff, commands, wanted in recipes():
            fault = applies(diff) or (runs(tree, diff, commands, wanted) if flags.build else "")
            faults += bool(fault)
            tried += 1
            print(f"{heading}: {fault or 'built and run' if flags.build else fault or 'applies'}", flush=True)
    print(f"{tried - faults} of {tried} changes of docs/extend.md {'built and ran' if flags.build else 'apply'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
