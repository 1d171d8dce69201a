#!/usr/bin/env python3
"""Tests the result of `pip install .`: the command, as far as that needs no compiler; and with --build all of it.

  pip_test.py            the `tandem` command of a package whose programs are stand-ins
  pip_test.py --build    `pip install .` beside the torch of .venv in a new environment, and a run of the demo there; compiles
                         into build/pip, which takes as long as ./tandem build without the tests
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools/python/tandem"
PROGRAM = '#!/bin/sh\necho "$(basename "$0") $*"\n'


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.site = Path(self.folder.name)
        self.package = self.site / "tandem"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tandem", "finetune_zero3"):
            self.write(f"tandem/bin/{name}", PROGRAM).chmod(0o755)
        self.write("tandem/share/tandem/torch_version.txt", "2.11.0\n")
        for name in ("convert", "prepare"):
            shutil.copytree(ROOT / "tools" / name, self.package / "share/tandem/tools" / name)
        shutil.copy(ROOT / "tools/fetch.py", self.package / "share/tandem/tools")
        self.torch("2.11.0+cpu")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def torch(self, version):
        for old in self.site.glob("torch-*.dist-info"):
            shutil.rmtree(old)
        if version:
            self.write(f"torch-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")

    def run_tandem(self, *arguments):
        # -S: of this machine's packages none, its torch least of all
        return subprocess.run([sys.executable, "-S", "-m", "tandem", *arguments], cwd=self.site, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(self.site)})

    def test_starts_the_program(self):
        self.assertEqual(self.run_tandem("plan", "--x", "a b").stdout, "tandem plan --x a b\n")
        self.assertEqual(self.run_tandem("train", "--steps", "2").stdout, "tandem train --steps 2\n")
        self.assertEqual(self.run_tandem().stdout, "tandem --help\n")

    def test_data_that_is_read_as_it_is_goes_to_the_trainer(self):
        data = self.write("data.json", '[{"instruction": "a", "output": "b"}]')
        done = self.run_tandem("train", "--dataset_name", str(data))
        self.assertEqual(done.stdout, f"finetune_zero3 --dataset_name {data}\n", done.stderr)

    def test_says_which_torch_it_needs(self):
        for version, text in (("2.10.0", "this environment has 2.10.0"), (None, "this environment has none")):
            self.torch(version)
            done = self.run_tandem("plan")
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_says_what_prepare_needs(self):
        done = self.run_tandem("prepare", "--help")
        self.assertEqual(done.returncode, 2)
        self.assertIn("pip install 'tandem[prepare]'", done.stderr)

    def test_fetch_is_there(self):
        self.assertIn("dataset", self.run_tandem("fetch", "--help").stdout)

    def test_prepare_has_the_pinned_packages(self):
        with open(ROOT / "pyproject.toml", "rb") as file:
            extra = tomllib.load(file)["project"]["optional-dependencies"]["prepare"]
        lines = (ROOT / "requirements-prepare.txt").read_text(encoding="utf-8").splitlines()
        self.assertEqual(extra, [line for line in lines if line and not line.startswith("#")])


def build():
    """In an environment of its own with the tree's torch: linked, since a copy takes a gigabyte."""
    folder = ROOT / "build/pip_test"
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    for path in next((ROOT / ".venv/lib").glob("python3*/site-packages")).iterdir():
        if path.name.startswith(("torch", "nvidia", "functorch")):
            (site / path.name).symlink_to(path)
    subprocess.run([folder / "bin/pip", "install", "--no-deps", "."], cwd=ROOT, check=True)
    subprocess.run([folder / "bin/tandem", "train", "--steps", "2", "--output_dir", folder / "out"], cwd=folder, check=True)
    subprocess.run([folder / "bin/python", "-c", "import tandem, os; assert os.path.isfile(tandem.cmake_prefix() + "
                    "'/lib/cmake/tandem/tandemConfig.cmake')"], cwd=folder, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(build() if sys.argv[1:] == ["--build"] else unittest.main())
