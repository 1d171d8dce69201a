"""Folders of tools/make_reference.py, one for each line of standard input: its flags. Importing takes longer than making one.

  make_references.py TOOLS < flags
"""

import shlex
import sys

sys.path.insert(0, sys.argv[1])
import make_reference  # noqa: E402

for line in sys.stdin.read().splitlines():
    code = make_reference.main(shlex.split(line))
    if code != 0:
        sys.exit(code)
