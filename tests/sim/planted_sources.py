#!/usr/bin/env python3
"""The sources of runtime/, actors/ and engine/ that reach planted.hpp, one a line: they are compiled once more for the simulator.

    planted_sources.py            prints them
    planted_sources.py LIST       exit 1 if LIST, which a build was configured with, is another
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
BUGS = "runtime/util/planted.hpp"


def planted_sources():
    includes = {str(path.relative_to(ROOT)): INCLUDE.findall(path.read_text(encoding="utf-8"))
                for layer in ("runtime", "actors", "engine") for path in (ROOT / layer).rglob("*.[hc]pp")}
    reaching, found = set(), {BUGS}
    while found:
        reaching |= found
        found = {name for name, files in includes.items() if name not in reaching and not reaching.isdisjoint(files)}
    return sorted(name for name in reaching if name.endswith(".cpp"))


def main():
    sources = planted_sources()
    if len(sys.argv) == 1:
        print("\n".join(sources))
    elif sources != Path(sys.argv[1]).read_text(encoding="utf-8").split():
        sys.exit(f"{sys.argv[1]}: other sources include {BUGS} by now; configure the build anew")


if __name__ == "__main__":
    main()
