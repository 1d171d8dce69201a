#!/usr/bin/env python3
"""./tandem setup installs packages on the systems of tools/packages.txt alone, and names them on all others.

    python3 tests/tools/setup_test.py

tools/setup.sh is sourced with an os-release and a package manager of the test's own, so nothing is installed.
"""

import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEBIAN_12 = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n'
DEBIAN_13 = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nVERSION_ID="13"\nID=debian\n'
UBUNTU = 'NAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n'
FEDORA = "ID=fedora\nVERSION_ID=43\n"
PREAMBLE = """
set -euo pipefail
root=$1
say() { echo "$*" >&2; }
die() { echo "error: $2" >&2; exit "$1"; }
source "$root/tools/setup.sh"
os_release=$2
install_packages() { echo "installs $*"; }
"""


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_in(self, os_release, script):
        release = self.folder / "os-release"
        release.write_text(os_release)
        return subprocess.run(["bash", "-c", PREAMBLE + script, "setup", ROOT, release], text=True, capture_output=True)

    def test_a_system_of_the_table_gets_what_it_lacks(self):
        done = self.run_in(DEBIAN_12, "missing_packages() { echo mold; echo cmake; }; setup_packages")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "installs mold cmake\n", ""))

    def test_an_untried_system_is_said_to_be_so(self):
        done = self.run_in(UBUNTU, "missing_packages() { echo mold; }; setup_packages")
        self.assertEqual((done.returncode, done.stdout), (0, "installs mold\n"))
        self.assertIn("ubuntu-24.04 is untried", done.stderr)

    def test_another_system_gets_the_names_and_nothing_else(self):
        done = self.run_in(FEDORA, "missing_packages() { system_packages; }; setup_packages; echo went on")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("fedora-43 is not a system of tools/packages.txt", done.stderr)
        self.assertIn("clang-19", done.stderr)
        self.assertIn("./tandem setup --no-packages", done.stderr)

    def test_a_system_without_a_name_is_another_system(self):
        done = self.run_in("", "missing_packages() { echo mold; }; setup_packages")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown- is not a system", done.stderr)

    def test_packages_that_are_there_or_left_to_the_user_end_nothing(self):
        for script in ("missing_packages() { :; }; setup_packages", "no_packages=yes; setup_packages"):
            done = self.run_in(FEDORA, script + "; echo went on")
            self.assertEqual((done.returncode, done.stdout), (0, "went on\n"), done.stderr)

    def test_a_name_of_a_system_takes_the_place_of_the_usual_one(self):
        table = self.folder / "packages.txt"
        table.write_text("system debian-13\nfirst  # comment\nsecond debian-13=other debian-1=wrong\n# third\n")
        done = self.run_in(DEBIAN_13, f"packages_file='{table}'; system_packages")
        self.assertEqual(done.stdout, "first\nother\n")
        done = self.run_in(UBUNTU, f"packages_file='{table}'; system_packages")
        self.assertEqual(done.stdout, "first\nsecond\n")

    def test_another_torch_can_take_the_place_of_the_pinned_one(self):
        (self.folder / "requirements.txt").write_text("# LibTorch\ntorch==2.11.0\n")
        for version, wanted in (("", "2.11.0"), ("2.15.0", "2.15.0")):
            done = self.run_in(DEBIAN_12, f"root='{self.folder}'; TANDEM_TORCH_VERSION={version}; cat \"$(requirement_files run)\"")
            self.assertEqual(done.stdout, f"# LibTorch\ntorch=={wanted}\n", done.stderr)

    def test_this_tree_names_the_compiler_once(self):
        done = self.run_in(DEBIAN_13, "system_packages")
        names = done.stdout.split()
        self.assertEqual(len(names), len(set(names)))
        self.assertIn("clang-19", names)


if __name__ == "__main__":
    unittest.main()
