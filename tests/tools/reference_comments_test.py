#!/usr/bin/env python3
"""Comments of headers hold no command that Doxygen does not know: it would end `./tandem docs`."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KNOWN = {"cond", "endcond"}  # those that are in use


class ReferenceComments(unittest.TestCase):
    def test_commands_are_doxygens(self):
        headers = [path for layer in ("runtime", "actors", "engine", "models", "trainer") for path in (ROOT / layer).rglob("*.hpp")]
        self.assertGreater(len(headers), 100)
        for path in headers:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                _, is_comment, comment = line.partition("///")
                if is_comment:
                    unquoted = re.sub(r'"[^"]*"', "", comment)
                    unknown = set(re.findall(r"\\(\w+)", unquoted)) - KNOWN
                    self.assertFalse(unknown, f"{path.relative_to(ROOT)}:{number}")


if __name__ == "__main__":
    unittest.main()
