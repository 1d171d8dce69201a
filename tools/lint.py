#!/usr/bin/env python3
"""The checks that `./tandem test` makes before it runs anything: lint.py format | tidy [--most N] [BUILD].

format  every C++ file is as clang-format-19 would write it, and the rules of tools/tidy.py hold
tidy    clang-tidy-19 on the lines that changed since the merge base with origin/main (or, where nothing did, since the
        last commit but one), in at most N sources (20), the most changed ones, with the commands of BUILD
        (build/release); a changed header is looked at through the source that includes it first
"""

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rooms
import tidy

ROOT = rooms.ROOT
HEADER = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")


def git(*arguments):
    """The output's lines, or None where git fails (no repository, no such commit)."""
    done = run("git", *arguments)
    return done.stdout.splitlines() if done.returncode == 0 else None


def check_format():
    files = [str(path.relative_to(ROOT)) for path in rooms.sources()]
    groups = [files[i : i + 50] for i in range(0, len(files), 50)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(lambda group: run("clang-format-19", "--dry-run", "--Werror", *group), groups))
    wrong = sorted({line.split(":")[0] for one in done for line in one.stderr.splitlines() if ": error: " in line})
    if wrong:
        print("not formatted; clang-format-19 -i " + " ".join(wrong))
    elif any(one.returncode for one in done):
        print("\n".join(one.stderr for one in done if one.returncode))
    return 1 if any(one.returncode for one in done) else 0


def changed_lines():
    """Changed C++ files -> the ranges of their changed lines, the most changed files first; None: there is no history to
    compare with."""
    head = git("rev-parse", "HEAD")
    if not head:
        return None
    base = git("merge-base", "HEAD", "origin/main") or head

    def since(commit):
        ranges, name = {}, None
        for line in git("diff", "--unified=0", "--find-renames", "--diff-filter=d", commit) or []:
            if line.startswith("+++ b/"):
                name = line[6:]
            hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
            if hunk and hunk[2] != "0":
                first = int(hunk[1])
                ranges.setdefault(name, []).append([first, first + int(hunk[2] or 1) - 1])
        return ranges

    ranges = since(base[0])
    for name in git("ls-files", "--others", "--exclude-standard") or []:
        ranges[name] = [[1, len((ROOT / name).read_bytes().splitlines()) + 1]]
    if not ranges and base == head:
        ranges = since("HEAD~")
    sources = {str(path.relative_to(ROOT)) for path in rooms.sources()}
    names = sorted(sources & set(ranges), key=lambda name: -sum(last - first + 1 for first, last in ranges[name]))
    return {name: ranges[name] for name in names}


def translation_units(names, known):
    """The sources of the build that show these files; a header's is the one that includes it first."""
    first = {}
    for source in sorted(known):
        found = HEADER.search((ROOT / source).read_text(encoding="utf-8"))
        if found:
            first.setdefault(found.group(1), source)
    return list(dict.fromkeys(unit for unit in (name if name in known else first.get(name) for name in names) if unit))


def commands(database):
    """The entries of a build's compile_commands.json, those of units of several sources (cmake/Unity.cmake) as one for each."""
    found = []
    for entry in json.loads(database.read_text(encoding="utf-8")):
        unit = entry["file"]
        if "/units/" not in unit:
            found.append(entry)
            continue
        for name in HEADER.findall(Path(unit).read_text(encoding="utf-8")):
            source = str(ROOT / name)
            found.append(entry | {"file": source, "command": entry["command"].replace(unit, source)})
    return found


def compiled_files(entries):
    """The sources that can be looked at: those of the build whose precompiled header is there, and which clang compiles."""
    found = set()
    for entry in entries:
        if entry["file"].endswith(".cu"):
            continue
        header = re.search(r"-include-pch -Xclang (\S+)", entry["command"])
        if Path(entry["file"]).is_file() and (header is None or Path(header[1]).is_file()):
            found.add(os.path.relpath(entry["file"], ROOT))
    return found


def check_changes(build, most):
    database = build / "compile_commands.json"
    if not database.is_file():
        print(f"lint: no {database}, so clang-tidy is left out")
        return 0
    lines = changed_lines()
    if lines is None:
        print("lint: no git history to compare with, so clang-tidy is left out")
        return 0
    entries = commands(database)
    units = translation_units(lines, compiled_files(entries))
    if not units:
        print("lint: no C++ file changed, so clang-tidy has nothing to look at")
        return 0
    what = f"{most} of {len(units)} changed sources, the most changed ones" if len(units) > most else f"{len(units)} sources"
    print(f"lint: clang-tidy on {what}", flush=True)

    single = build / "single"
    single.mkdir(exist_ok=True)
    (single / "compile_commands.json").write_text(json.dumps(entries, indent=0), encoding="utf-8")
    changed = json.dumps([{"name": name, "lines": ranges} for name, ranges in lines.items()])

    def look(unit):
        return run("clang-tidy-19", "-p", str(single), "--quiet", "--warnings-as-errors=*", f"--line-filter={changed}", unit)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = list(pool.map(look, units[:most]))
    print("".join(one.stdout for one in done if one.returncode), end="")
    return 1 if any(one.returncode for one in done) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["format", "tidy"])
    parser.add_argument("build", nargs="?", default="build/release")
    parser.add_argument("--most", type=int, default=20)
    flags = parser.parse_args()
    try:
        if flags.what == "format":
            return check_format() | tidy.main()
        return check_changes(ROOT / flags.build, flags.most)
    except FileNotFoundError as missing:
        print(f"error: [lint] {missing.filename} not found; ./tandem setup installs it", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
