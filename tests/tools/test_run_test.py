"""What ./tandem test prints of a ctest run: counts, a failed test's own output, skips with reasons, ctest's closing lines
last; and that a test which writes outside of its folders fails the run."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools/test_run.py"

TESTS = """
add_test(passes "sh" "-c" "echo quiet words")
add_test(skips "sh" "-c" "echo no such device here; exit 77")
set_tests_properties(skips PROPERTIES SKIP_RETURN_CODE 77)
"""
SKIPS_INSIDE = """
add_test(Suite "sh" "-c" "printf 'a_test.cpp:1: Skipped\\nno GPU here\\n[  SKIPPED ] Suite.One (0 ms)\\n[       OK ] Suite.Two (0 ms)\\n'")
"""
FAILS = 'add_test(fails "sh" "-c" "echo loud words; exit 1")\n'


class TestRun(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.build = self.folder / "build"
        self.build.mkdir()
        self.home = self.folder / "home"
        self.home.mkdir()

    def run_tests(self, tests, *flags):
        (self.build / "CTestTestfile.cmake").write_text(tests)
        environment = os.environ | {"HOME": str(self.home), "TMPDIR": str(self.folder)}
        command = [sys.executable, "-B", TOOL]
        ran = subprocess.run([*command, "run", "--state", self.folder / "state", "--preset", "release", "--build", self.build, *flags,
                              "--", "--parallel", "2"], env=environment, text=True, capture_output=True, check=False)
        table = subprocess.run([*command, "table", "--state", self.folder / "state"], env=environment, text=True,
                               capture_output=True, check=True).stdout
        return ran.returncode, ran.stderr, table

    def test_a_passing_run_is_one_line_and_a_table_with_reasons(self):
        code, said, table = self.run_tests(TESTS + SKIPS_INSIDE)
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"^test: release: 2 passed, 0 failed, 1 skipped in \d+ s\n$")
        self.assertIn("no such device here: release skips", table)
        self.assertIn("no GPU here: release Suite.One", table)
        self.assertNotIn("quiet words", said + table)
        self.assertRegex(table, r"100% tests passed, 0 tests failed out of 3\n+Total Test time[^\n]*\n$")
        self.assertIn("quiet words", (self.folder / "state/log/release.txt").read_text() +
                      (self.folder / "state/log/release.xml").read_text())

    def test_a_failed_tests_output_is_shown_and_it_is_tried_alone(self):
        code, said, table = self.run_tests(TESTS + FAILS)
        self.assertEqual(code, 8)
        self.assertIn("loud words", said)
        self.assertIn("those that failed, once more", said)
        self.assertIn("1 failed", said)
        self.assertRegex(table, r"release +1 +1 +1 ")

    def test_a_parameter_without_words_fails_the_run(self):
        code, said, _ = self.run_tests(TESTS + 'add_test("Both/Suite.One/4-byte object <00-00 00-00>" "true")\n')
        self.assertEqual(code, 1)
        self.assertIn("a parameter has no words in Both/Suite.One/4-byte object", said)

    def test_what_changes_outside_fails_the_run(self):
        inside = 'add_test(inside "sh" "-c" [[echo x > "$TMPDIR/x"; rm "$TMPDIR/x"]])\n'
        self.assertEqual(self.run_tests(inside)[0], 0)
        for written in ("$HOME/.cache/tandem/rates", "$HOME/.tandem", str(self.folder / "tandem-0"), "$TMPDIR/left"):
            with self.subTest(written):
                test = f'add_test(outside "sh" "-c" [[mkdir -p "$(dirname "{written}")"; echo $$ > "{written}"]])\n'
                code, said, _ = self.run_tests(test)
                self.assertEqual(code, 1, said)
                self.assertRegex(said, r"error: \[test\] outside of the build: (new|changed|left)")

    def test_beside_others_only_names_of_ours_count(self):
        other = 'add_test(other "sh" "-c" "echo > \\$HOME/letter.txt")\n'
        self.assertEqual(self.run_tests(other)[0], 1)
        (self.home / "letter.txt").unlink()
        code, said, _ = self.run_tests(other, "--beside-others")
        self.assertEqual(code, 0, said)
        self.assertIn("by other programs", said)


if __name__ == "__main__":
    unittest.main()
