#!/usr/bin/env python3
"""The site of the pages (tools/docs_site.py) builds without a warning, and a page that leads nowhere fails it.

    python3 tests/docs/site_test.py

Skips with one line where Sphinx is not installed.
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import docs_site


def build(tree, out):
    """(exit status, what it printed) of the site of `tree`."""
    done = subprocess.run([sys.executable, tree / "tools" / "docs_site.py", "--out", out], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def test_has_every_page_and_the_order_of_the_index(self):
        status, printed = build(ROOT, self.folder)
        self.assertEqual(status, 0, printed)
        pages = [page for place in ("docs", "docs/start", "docs/howto", "bench/results") for page in (ROOT / place).glob("*.md")]
        lacking = [page.name for page in pages if not (self.folder / "site" / page.relative_to(ROOT).with_suffix(".html")).exists()]
        self.assertEqual(lacking, [])
        home = (self.folder / "site" / "README.html").read_text(encoding="utf-8")
        sections = ["Start", "Concepts", "How to", "Extend", "Reference", "Internals"]
        places = [home.find(f'<span class="caption-text">{title}</span>') for title in sections]
        self.assertNotIn(-1, places)
        self.assertEqual(places, sorted(places))
        self.assertIn("README.html", (self.folder / "site" / "index.html").read_text(encoding="utf-8"))
        step = (self.folder / "site" / "docs" / "step.html").read_text(encoding="utf-8")
        self.assertIn('class="mermaid"', step)

    def test_a_dead_link_a_dead_heading_and_a_page_outside_of_the_index_fail(self):
        tree = self.folder / "tree"
        for name in ("docs/site/conf.py", "docs/site/api.html", "tools/docs_site.py"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
        (tree / "docs/README.md").write_text("# Documentation\n\n## Start\n- [One](one.md)\n")
        (tree / "docs/one.md").write_text("# One\n\nA page.\n")
        for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
            (tree / name).write_text(f"# {name}\n\nA page.\n")
        (tree / "README.md").write_text("# Home\n\nSee [one](docs/one.md#one).\n")
        status, printed = build(tree, self.folder / "good")
        self.assertEqual(status, 0, printed)
        (tree / "README.md").write_text("# Home\n\nSee [none](docs/none.md) and [nowhere](docs/one.md#two).\n")
        (tree / "docs/lost.md").write_text("# Lost\n\nNo section names this page.\n")
        status, printed = build(tree, self.folder / "bad")
        self.assertNotEqual(status, 0)
        for fault in ("docs/none.md", "'two'", "lost.md"):
            self.assertIn(fault, printed)


if __name__ == "__main__":
    if docs_site.missing():
        print("skipped, because sphinx, myst-parser, furo or sphinxcontrib-mermaid is not installed")
        sys.exit(docs_site.SKIPPED)
    unittest.main()
