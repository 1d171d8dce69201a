#!/usr/bin/env python3
"""Modules that lie in the current folder, where users keep data, are never run by a command of Tandem."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Modules of Python itself that the commands import, and those that Python looks for before any of ours begins.
NAMES = ["argparse", "contextlib", "gzip", "hashlib", "importlib", "json", "numpy", "pathlib", "pkgutil", "prepare", "runpy", "sitecustomize",
         "subprocess", "tempfile", "torch", "typing", "usercustomize", "wandb", "xxhash"]
RECORDS = '[{"instruction": "a", "output": "b"}]'
PYTHON_PATHS = [None, "", ":/nowhere", "/nowhere:", ".", "/nowhere::/elsewhere", "sub"]


class CurrentFolder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "sub").mkdir()
        for name in NAMES:
            for place in (self.folder, self.folder / "sub"):
                (place / f"{name}.py").write_text(f"open({str(self.folder / 'RAN')!r}, 'a').write('{name} ')\n", encoding="utf-8")
        (self.folder / "data.json").write_text(RECORDS, encoding="utf-8")

    def run_in_it(self, command, python_path, **options):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        if python_path is not None:
            environment["PYTHONPATH"] = python_path
        done = subprocess.run(list(map(str, command)), cwd=self.folder, env=environment, capture_output=True, text=True, **options)
        ran = self.folder / "RAN"
        self.assertFalse(ran.exists(), f"PYTHONPATH={python_path} {command}: {ran.read_text() if ran.exists() else ''}")
        return done

    def function_of_the_tree(self, *words):
        """A function of ./tandem with its arguments, without the setup before it."""
        return ["bash", "-c", 'source "$0" help > /dev/null; "$@"', ROOT / "tandem", *words]

    def test_modules_of_the_tree(self):
        for python_path in PYTHON_PATHS:
            done = self.run_in_it(self.function_of_the_tree("run_module", "prepare.for_training", "/bin/echo", "--model_name", "x", "--dataset_name", "data.json"), python_path)
            self.assertEqual(done.stdout.split(), ["--model_name", "x", "--dataset_name", "data.json"], done.stderr)

    def test_scripts_of_the_tree(self):
        for python_path in PYTHON_PATHS:
            done = self.run_in_it(self.function_of_the_tree("command_fetch", "--help"), python_path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.run_in_it(self.function_of_the_tree("missing_requirements", ROOT / "requirements.txt"), python_path)

    def test_the_command_of_pip(self):
        """-P is how our own processes start it; the other is how users may. -S: what .pth files of this machine import
        comes before anything of ours."""
        site = self.folder / "site"
        (site / "tandem" / "share/tandem").mkdir(parents=True)
        for path in (ROOT / "tools/python/tandem").glob("*.py"):
            (site / "tandem" / path.name).write_bytes(path.read_bytes())
        (site / "tandem/share/tandem/tools").symlink_to(ROOT / "tools")
        for python_path in (f"{site}", f"{site}:", f":{site}:sub"):
            entry = "import tandem.front_door; tandem.front_door.main()"
            starts = [["-P", "-m", "tandem"]] if ":" not in python_path else []
            script = site / "tandem-command"
            script.write_text(entry, encoding="utf-8")
            for start in [*starts, [script]]:
                done = self.run_in_it([sys.executable, "-S", *start, "fetch", "--help"], python_path)
                self.assertIn("cifar10", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()
