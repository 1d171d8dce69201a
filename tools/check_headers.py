#!/usr/bin/env python3
"""Every header of runtime/ compiles alone: check_headers.py COMPILER [FLAGS...].

A header that some source or test of the build includes before anything else has been compiled alone by that; the others
are compiled here, without code being made. Exit 1 if one does not compile.
"""

import concurrent.futures
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def first_includes():
    """What the sources of the build include first."""
    for folder in ["runtime", "tests/runtime"]:
        for source in (ROOT / folder).rglob("*.cpp"):
            if "compile_fail" in source.parts:
                continue
            found = FIRST_INCLUDE.search(source.read_text(encoding="utf-8"))
            if found:
                yield found.group(1)


def compile_alone(command, header):
    run = subprocess.run([*command, "-fsyntax-only", "-x", "c++", "-"], cwd=ROOT, capture_output=True, text=True,
                         input=f'#include "{header}"\n')
    return header, run.returncode, run.stderr


def main():
    if len(sys.argv) < 2:
        print(__doc__.splitlines()[0], file=sys.stderr)
        return 2
    command = [sys.argv[1], "-std=c++20", "-I", str(ROOT), "-DASIO_STANDALONE", "-DASIO_NO_DEPRECATED", *sys.argv[2:]]
    headers = {str(path.relative_to(ROOT)) for path in (ROOT / "runtime").rglob("*.hpp")}
    left = sorted(headers - set(first_includes()))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda header: compile_alone(command, header), left))
    for header, code, errors in results:
        if code != 0:
            print(f"{header} does not compile alone:\n{errors}")
    print(f"{len(headers)} headers, {len(left)} of them compiled here")
    return 1 if any(code != 0 for _, code, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
