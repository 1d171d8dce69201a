#!/usr/bin/env python3
"""A tree that was copied or moved with its build folder is configured anew: it compiles its own sources."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class MovedTree(unittest.TestCase):
    def setUp(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.tree = folder / "tree"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tandem", self.tree)
        shutil.copy(ROOT / "tools/setup.sh", self.tree / "tools")
        self.programs = folder / "programs"  # which say that they were called
        self.programs.mkdir()
        for name in ("cmake", "ninja"):
            program = self.programs / name
            program.write_text(f"#!/bin/sh\necho {name} >> '{folder}/called'\n", encoding="utf-8")
            program.chmod(0o755)
        self.called = folder / "called"

    def built(self, home):
        """Builds in a folder configured for `home`; returns the programs called, whether the folder stayed, and the errors."""
        build = self.tree / "build/release"
        build.mkdir(parents=True, exist_ok=True)
        (build / "build.ninja").touch()
        (build / "kept").touch()
        (build / "CMakeCache.txt").write_text(f"CMAKE_HOME_DIRECTORY:INTERNAL={home}\n", encoding="utf-8")
        self.called.unlink(missing_ok=True)
        done = subprocess.run(["bash", "-c", 'source "$0" help > /dev/null; build release', self.tree / "tandem"], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.called.read_text(encoding="utf-8").split(), (build / "kept").exists(), done.stderr

    def test_it_is_configured_anew(self):
        for home in (ROOT, "/nowhere"):
            called, stayed, said = self.built(home)
            self.assertEqual((called, stayed), (["cmake", "ninja"], False))
            self.assertIn(f"was configured for {home}", said)

    def test_a_folder_behind_a_link_stays(self):
        elsewhere = self.tree.parent / "elsewhere"
        elsewhere.mkdir()
        (self.tree / "build").symlink_to(elsewhere)
        called, stayed, _ = self.built(ROOT)
        self.assertEqual((called, stayed), (["ninja"], True))

    def test_its_own_folder_stays(self):
        link = self.tree.parent / "link"
        link.symlink_to(self.tree)
        for home in (self.tree, link):
            called, stayed, _ = self.built(home)
            self.assertEqual((called, stayed), (["ninja"], True))


if __name__ == "__main__":
    unittest.main()
