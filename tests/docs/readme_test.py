#!/usr/bin/env python3
"""Runs the commands of README.md, docs/start/ and docs/howto/, and compares what they print with the output on the page.

    python3 tests/docs/readme_test.py build/release/bin [--all] [--pages FILE...] [--only HEADING...] [--show]

Every fence of a page has a language: `sh` are commands, `text` behind them is what they print, together. A command is run
from an empty folder that looks like the tree, or it stands below with the reason: in NOT_RUN, or in LONG, which --all runs.
All pages share that folder, and a command that stands on several of them runs once. An entry below that is no command of any
page is a fault. Where the output has a line `error:`, the block's last command has to fail, elsewhere all have to succeed.

Output is compared line by line; a line `...` stands for any lines, `...` behind a line for its rest. In each line:
  - spaces count as one, paths are said from the tree's folder or from home (~);
  - what VARIES matches says nothing: times, rates, memory in use, dates, hashes, steps that a clock decided,
    how far float32 is from the truth on this processor, and of which tensor;
  - losses, norms and perplexities are equal within 5 % or 0.05, since CPUs add in different orders;
  - everything else is equal, character by character.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT.parent / "shared/data/model_configs"
ORACLES = ROOT.parent / "shared/oracles/models"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/start").glob("*.md")), *sorted((ROOT / "docs/howto").glob("*.md"))]
NAMED = [ROOT / "docs/commands.md"]  # without commands that run; the names in its sentences are checked
LANGUAGES = {"sh", "text", "cpp", "cmake", "json", "mermaid"}

# The beginning of a command -> why not here.
NOT_RUN = {
    "./tandem test": "runs this test",
    "python -m venv env": "tests/install/pip_test.py --build: it compiles everything again",
    "env/bin/": "as the line before",
    "./tandem fetch dataset": "needs the network; tests/tools/fetch_test.py has a server",
    "./tandem launch --host": "needs two hosts; tests/drills/hosts.py has network namespaces",
    "examples/scripts/finetune_qwen3-14b_1gpu.sh": "needs the weights and a GPU; tests/examples/scripts_test.py has small ones",
    "cd ~/my_trainer": "compiles for a minute: the test install.template",
    "TANDEM_PREFIX=": "as the line before",
    "build/release/my_trainer": "as the line before",
}
LONG = {
    "./tandem train": "the whole demo: 800 steps; docs/start/first_run.md has 30",
    "examples/scripts/cifar10_prmoe.sh": "half a minute on two ranks",
    "build/release/bin/make_model --config examples/demo/wide_config.json": "55 million parameters; the section before it draws a smaller run",
    "./tandem train --model_name runs/wide": "as the line before",
    "python3 tools/plot_trace.py runs/overlap": "as the line before",
    "python3 tools/make_reference.py": "Transformers in float64: the test reference",
    "./tandem parity one-layer": "as the line before",
}
# Commands that need a file which this machine may lack.
NEEDS = {"path/to/Qwen3-14B": CONFIGS / "Qwen3-14B.json", "path/to/config.json": CONFIGS / "Llama-3.3-70B.json",
         "path/to/reference": ORACLES / "qwen3", "torchrun": ROOT / ".venv/bin/torchrun"}
DEEPSPEED = """{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "overlap_comm": true}}
"""

VARIES = re.compile("|".join([
    r"\d+(\.\d+)? ?(ms|us|ns|s|TFLOPS)\b", r"[\d.]+ (tokens|MB|messages|images)/s", r"\d+:\d\d(:\d\d)?",
    r"(?<=TFLOPS: )[\d.]+", r"(?<=Tokens/s: )\d+", r"(?<=Busy: )\d+%", r"(?<=p[19]0 )[\d.]+", r"(?<=resource works )\d+ %",
    r", MFU [\d.]+ %", r"; no MFU: .*", r"(?<=host memory )[\d.]+ MiB, predicted [\d.]+ MiB", r"(?<=peak memory )\d+ MB",
    r"(?<=max_(?:abs|rel)=)[\d.e-]+", r"(?<=\(worst )[\w.]+",
    r"[0-9a-f]{16}", r"\d{8}-\d{6}", r"(?<=after step )\d+", r"(?<=step-)\d{8}", r"(?<=checkpoint of step )\d+", r"(?<=interrupted at )\d+",
    r"(?<=stopped after )\d+(?= of)", r"(?<=parser )\d(?= of)", r"(?<=totals )\d(?= of)"]))
# Lines that are there or not, by the machine.
MAYBE = re.compile(r"^ *gained ")
MEASURED = re.compile(r"(?<=Loss: )[\d.]+|(?<=loss )[\d.]+( -> [\d.]+)?|(?<=Norm: )[\d.]+|(?<=perplexity )[\d.]+")


def blocks(page):
    """(heading, language, text, line) of each fence."""
    heading, language, start, lines = "", None, 0, []
    for number, line in enumerate(page.split("\n"), 1):
        if line.startswith("```") and language is None:
            language, start, lines = line[3:].strip(), number, []
        elif line.startswith("```"):
            yield heading, language, lines, start
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("## "):
            heading = line[3:]


def commands(lines):
    """One string each: without what continues a line, and without remarks."""
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [line for line in (re.sub(r"(^|\s+)# .*$", "", line).rstrip() for line in text.split("\n")) if line]


def listed(command, entries):
    """The entry that the command is, or begins with: `./tandem train` alone is the command without flags."""
    return next((entry for entry in entries if command == entry or (command.startswith(entry) and entry != "./tandem train")), None)


def normal(line):
    """The line without what may vary, and the numbers in it that are measured."""
    numbers = []

    def measured(match):
        numbers.extend(float(value) for value in match[0].split(" -> "))
        return "<measured>"

    line = re.sub(r" +", " ", line.rstrip())
    line = line.removesuffix(", and for its gradients")  # by the machine's speed
    return VARIES.sub("<varies>", MEASURED.sub(measured, line)), numbers


def same(wanted, got):
    (pattern, expected), (text, found) = wanted, got
    if pattern.endswith(" ..."):
        text, found = text[: len(pattern) - 4] + " ...", found[: len(expected)]
    return pattern == text and len(expected) == len(found) and all(
        abs(a - b) <= max(0.05, 0.05 * abs(a)) for a, b in zip(expected, found))


def difference(wanted, output):
    """Returns text with the page's lines that the output lacks in that place; None where they agree."""
    printed = [normal(line) for line in output.rstrip("\n").split("\n") if not MAYBE.match(line)]
    runs = [[]]  # between two `...`
    for line in wanted:
        if line == "...":
            runs.append([])
        elif not MAYBE.match(line):
            runs[-1].append(line)
    at = 0
    for number, run in enumerate(runs):
        lines = [normal(line) for line in run]
        last = len(printed) - len(lines)
        begin = max(at, last) if number == len(runs) - 1 else at
        end = at if number == 0 else last
        place = next((place for place in range(begin, end + 1) if all(map(same, lines, printed[place:place + len(lines)]))), None)
        if place is None or place > last:
            here = [("  " if any(same(line, other) for other in printed) else "! ") + text for line, text in zip(lines, run)]
            return "\n".join(["these lines do not stand so in the output (! nowhere):", *here])
        at = place + len(lines)
    return None


class Tree:
    """A folder that a reader's clone looks like, with the built programs, in which nothing is built and no set-up is done."""

    def __init__(self, folder, programs):
        self.folder = folder / "tandem"
        self.home = folder / "home"
        for name in ("examples", "tools"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in [ROOT / "tandem", *ROOT.glob("requirements*.txt")]:
            shutil.copy(path, self.folder)
        for name in ("build", "docs", ".cache", "runs", "path/to", "bin"):
            (self.folder / name).mkdir(parents=True)
        self.home.mkdir()
        (self.folder / "build/release").symlink_to(programs.parent)
        (self.folder / ".venv").symlink_to(ROOT / ".venv")
        real = shutil.which("ninja")
        self.write("bin/ninja", f'#!/bin/sh\ncase "$*" in */build/release*) exit 0 ;; esac\nexec {real} "$@"\n').chmod(0o755)
        self.environment = {**os.environ, "HOME": str(self.home),
                            "PATH": f"{self.folder}/bin:{ROOT}/.venv/bin:{os.environ['PATH']}"}
        # Threads that wait sleep, so that a run beside other tests takes no CPU from them; no digit changes.
        self.environment |= {"OMP_WAIT_POLICY": "passive", "TANDEM_SPIN": "never"}
        for name in ("TANDEM_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
            self.environment.pop(name, None)
        # The rates that a placement depends on are given, as to the other tests (tests/support/process/own_folder.hpp).
        cache = self.home / ".cache/tandem"
        cache.mkdir(parents=True)
        (cache / "bandwidths.tsv").write_text(f"tandem bandwidths 2\n*\t{os.environ.get('TANDEM_TEST_RATE', '1e10')}\n", encoding="utf-8")
        self.here = self.folder
        self.run('set -eu; root=$PWD; . tools/setup.sh; for kind in run prepare test; do setup_stamp >.cache/setup-$kind; done')
        self.placeholders()

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def placeholders(self):
        """Makes the files that stand for a reader's own."""
        self.run("build/release/bin/make_model --config examples/demo/config.json --tokenizer examples/demo --output path/to/model")
        self.run("head -n 40 examples/demo/chats.jsonl >chats.jsonl")
        self.write("first.py", "import json\njson.dump(json.load(open('examples/demo/instructions.json'))[:24], open('data.json', 'w'))\n")
        self.run("python3 first.py")
        self.write("ds.json", DEEPSPEED)
        for name, needed in NEEDS.items():
            path = self.folder / name
            if needed.suffix == ".json" and needed.exists():
                if path.suffix != ".json":
                    path.mkdir()
                    path = path / "config.json"
                shutil.copy(needed, path)
            elif needed.is_dir():
                path.symlink_to(needed)

    def run(self, command):
        """Exit code and output; a `cd` stays."""
        done = subprocess.run(["bash", "-c", f"{command}\ncode=$?\npwd >'{self.home}/.here'\nexit $code"], cwd=self.here,
                              env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=600)
        self.here = Path((self.home / ".here").read_text().rstrip("\n"))
        return done.returncode, done.stdout.replace(f"{self.folder}/", "").replace(str(self.home), "~")


class Pages:
    """What all pages share: the tree, the outputs of their commands, and the faults."""

    def __init__(self, tree, flags):
        self.tree, self.flags = tree, flags
        self.outputs, self.seen = {}, set()  # a command is run once, and known by its text
        self.faults, self.count, self.left, self.lines = [], 0, 0, 0
        self.name = ""

    def fault(self, line, text):
        self.faults.append(f"{self.name}:{line}: {text}")
        print(self.faults[-1], flush=True)

    def run(self, command):
        if command not in self.outputs:
            begin = time.monotonic()
            self.outputs[command] = self.tree.run(command)
            self.count += 1
            print(f"{time.monotonic() - begin:6.1f} s  {command}", flush=True)
        if self.flags.show:
            print(self.outputs[command][1], flush=True)
        return self.outputs[command]

    def run_block(self, lines, at, expected):
        outputs, asked = [], commands(lines)
        for command in asked:
            never, later = listed(command, NOT_RUN), listed(command, LONG)
            self.seen |= {never, later}
            lacks = next((name for name, path in NEEDS.items() if name in command and not path.exists()), None)
            if never and expected is not None:
                self.fault(at, f"output of a command that this test does not run: {command}")
            if never or lacks or (later and not self.flags.all):
                self.left += 1
                print(f"    left  {command}: {NOT_RUN.get(never) or LONG.get(later) or f'{lacks} is not here'}", flush=True)
                continue
            code, output = self.run(command)
            fails = command == asked[-1] and any(line.startswith("error:") for line in expected or [])
            if (code != 0) != fails:
                self.fault(at, f"exit code {code}: {command}\n{output}")
            outputs.append(output)
        if expected is not None and len(outputs) == len(asked):
            self.lines += sum(line != "..." for line in expected)
            found = difference(expected, "".join(outputs))
            if found:
                self.fault(at, f"{found}\n--- printed was:\n{''.join(outputs)}---")

    def check(self, page):
        self.name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        found = list(blocks(page.read_text(encoding="utf-8")))
        section = None
        for number, (heading, language, lines, at) in enumerate(found):
            if language not in LANGUAGES:
                self.fault(at, f"a block of the language \"{language}\"; these are known: {', '.join(sorted(LANGUAGES))}")
            if number == 0 or heading != section:
                section, self.tree.here = heading, self.tree.folder
            if language == "text" and (number == 0 or found[number - 1][1] != "sh"):
                self.fault(at, "output without a command before it")
            if language == "sh" and (not self.flags.only or heading in self.flags.only):
                behind = found[number + 1] if number + 1 < len(found) else (None, None, None, 0)
                self.run_block(lines, at, behind[2] if behind[1] == "text" and behind[0] == heading else None)

    def check_lists(self):
        for entry in {*NOT_RUN, *LONG} - self.seen:
            self.fault(0, f"no command begins with \"{entry}\", which this test lists")

    def check_names(self, pages):
        """Commands and flags in the sentences are there."""
        self.tree.here = self.tree.folder
        prose = {}
        for page in pages:
            text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
            prose[page] = re.findall(r"`([^`]+)`", text)
        usage = self.tree.run("./tandem help")[1]
        names = {word for codes in prose.values() for code in codes for word in re.findall(r"^\./tandem ([a-z][\w-]*)", code)}
        helps = usage + "".join(self.tree.run(f"./tandem {name} --help")[1] for name in sorted(names | {"cifar10", "cifar10-tutorial"})
                                if name not in ("docs", "setup", "trust"))
        for page, codes in prose.items():
            self.name = page.relative_to(ROOT)
            for name in sorted({word for code in codes for word in re.findall(r"^\./tandem ([a-z][\w-]*)", code)}):
                if not re.search(rf"^  {name}\b", usage, re.MULTILINE):
                    self.fault(0, f"`./tandem {name}` is no command of ./tandem help")
            for code in codes:
                if "bench" in code or code.startswith(("tools/", "pkg-config ")):  # a record's command; a program with its own flags
                    continue
                for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code):
                    if not re.search(rf"{flag}(?![\w-])", helps):
                        self.fault(0, f"{flag} is a flag of no command that the pages name")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path, help="the folder of the built programs")
    parser.add_argument("--all", action="store_true", help="the long commands, too")
    parser.add_argument("--pages", nargs="*", type=Path, default=[], help="these pages alone")
    parser.add_argument("--only", nargs="*", default=[], help="the commands below these headings alone")
    parser.add_argument("--show", action="store_true", help="print what each command prints, for a page that is being written")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = Pages(Tree(Path(folder), flags.programs.resolve()), flags)
        for page in [path.resolve() for path in flags.pages] or PAGES:
            pages.check(page)
        if not flags.only and not flags.pages:
            pages.check_lists()
            pages.check_names(PAGES + NAMED)
    print(f"{pages.count} commands of README.md and docs/ run, {pages.lines} lines of output compared, {pages.left} commands left, "
          f"{len(pages.faults)} faults")
    return 1 if pages.faults else 0


if __name__ == "__main__":
    sys.exit(main())
