"""The kinds of steps that an item is made of, and the readers of their figures.

Invariant: a step has a time limit, and whatever it started has ended before the next one begins; only what is started beside
others by Start goes on, until its Await.
"""

import dataclasses
import re
from typing import Callable

import kit as kit_module  # first: it finds the tools beside this folder
import wheels
from gpu_record import lines, sanitized, tests
from trust_campaigns import FallsShort, NoFigure

FAILURES = (FallsShort, NoFigure)
PRINTS_S = 8  # for a comparison to end its last side and to print
FOR_THE_IMAGE = ["--only-binary=:all:", "--implementation", "cp", "--python-version", wheels.PYTHON,
                 *(part for name in wheels.PLATFORMS for part in ("--platform", name))]


@dataclasses.dataclass(frozen=True)
class Step:
    """`absent` says why the step cannot be run here: then it is left out, and the record says so."""

    name: str
    seconds: float
    command: list
    figure: Callable[[str], str]
    environment: dict = dataclasses.field(default_factory=dict)
    absent: str = ""
    marks: tuple = ()

    def within(self, seconds):
        """The command; one that has a budget has that much less of it that it can print its table."""
        if "--budget" not in self.command:
            return self.command
        at = self.command.index("--budget") + 1
        budget = min(float(self.command[at]), max(0, seconds - PRINTS_S))
        return [*self.command[:at], f"{budget:.0f}", *self.command[at + 1:]]


@dataclasses.dataclass(frozen=True)
class Start:
    """Starts a command beside the steps that follow."""

    name: str
    command: list
    environment: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Await:
    """Gives a started command `seconds` to end; with `end` it is ended then, else it goes on beside what follows."""

    name: str
    seconds: float
    end: bool
    figure: Callable[[str], str]


def counted(output):
    """GoogleTest's counts, where all tests may be skipped: without a GPU."""
    found = re.findall(r"^\[  (?:PASSED|SKIPPED) +\] \d+ tests?[^\n]*", output, re.MULTILINE)
    if not found:
        raise NoFigure("no count of GoogleTest")
    return "; ".join(found)


def whole(output):
    return output.strip() or "it printed nothing"


def tests_step(kit, program, seconds, cases, under=()):
    """Tests that need a GPU; `under` is a sanitizer with its flags."""
    command = [*under, kit.starter(program) if under else program, f"--gtest_filter={cases}"]
    reader = (lambda output: counted(output) + "\n" + lines("SUMMARY")(output)) if under else counted
    if not kit.rehearse:
        reader = sanitized if under else tests
    name = f"{program} {cases}" + (f" under {under[under.index('--tool') + 1]}" if under else "")
    return Step(name, seconds, command, reader, absent=kit.why_not(under[0]) if under else "")


def sanitizer(tool):
    return ("compute-sanitizer", "--target-processes", "all", "--tool", tool, "--error-exitcode", "1")


def plan_step(kit, shape, *flags):
    """What memory and which step the engine expects."""
    own = kit.sizes(shape)
    command = ["tandem", "plan", "--model_name", kit.config(shape.model), "--device", kit.device, "--dtype", "bf16",
               "--activation_checkpointing", "--batch_size", str(own.rows), "--max_length", str(own.length), *flags]
    return Step(" ".join(["plan", shape.model, *flags]), 30, command, lines("^(placement|step|total|device|host|error)"))


def pair_step(kit, title, seconds, sides, marks=(), rounds=1, order=None, limit=300, least=30):
    """Sides in turns. A rehearsal runs each of them once."""
    turns = ["--order", order] if order and not kit.rehearse else ["--rounds", str(1 if kit.rehearse else rounds)]
    command = [kit.python, kit.tool("pair.py"), "--title", title, "--budget", str(seconds), "--limit", str(limit), *turns,
               "--least", str(5 if kit.rehearse else least)]
    command += ["--out", str(kit.out / "table.md"), "--raw", str(kit.out / "raw.jsonl")]
    for name, side in sides.items():
        command += ["--side", f"{name}={kit_module.line_of(side)}"]
    return Step(title, seconds + PRINTS_S, command, lines(r"^(\||- )"), kit.peer_environment(), marks=marks)


def trace_step(kit, name, last_ms, command):
    """A run with the CUPTI library in it, which writes a file of the trace when the program ends."""
    library = kit.pack / kit_module.TRACE
    trace = kit.out / f"trace_{re.sub(r'[^a-z0-9.]+', '_', name.lower())}.txt"
    inject = {"CUDA_INJECTION64_PATH": str(library), "CUPTI_TRACE_LAST_MS": str(last_ms),
              "CUPTI_TRACE_OUT": str(trace)}

    def figure(output):
        if not trace.is_file() and not kit.rehearse:
            raise NoFigure("no trace was written")
        head = trace.read_text(encoding="utf-8").splitlines()[:15] if trace.is_file() else ["no GPU, no trace"]
        return "\n".join([lines("tokens_per_s")(output), *head])

    return Step(f"trace of {name}", 60, command, figure, inject, "" if library.is_file() else f"no {library.name} was packed")


def wheels_step(kit):
    """Installs them beside this machine's packages; a rehearsal does so for the image's Python, which is another one."""
    files = [str(path) for path in kit.wheels()]
    command = [kit.python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade",
               "--target", str(kit.site), *(FOR_THE_IMAGE if kit.rehearse else []), *files]
    absent = "" if files else "no wheels of the peers were packed"
    return Step("the peers' wheels", 60, command, whole, absent="installed already" if kit.site.is_dir() else absent)


def start_adam(kit):
    """DeepSpeed compiles its CPUAdam here, with this machine's torch."""
    code = "from deepspeed.ops.op_builder import CPUAdamBuilder as Builder; Builder().load(verbose=True)"
    return Start("CPUAdam", [kit.python, "-c", code], kit.peer_environment())


def await_adam(kit, seconds):
    def figure(output):
        folder = kit.work / "extensions/cpu_adam"
        (folder / "lock").unlink(missing_ok=True)  # of a build that was ended: the next to load it would wait for it
        flags = sorted(set(re.findall(r"-D__(?:AVX|SCALAR)\w*__|-march=[\w-]+", output)))
        if not (folder / "cpu_adam.so").is_file():
            raise NoFigure("CPUAdam was not built")
        return f"built with {' '.join(flags)}"

    return Await("CPUAdam", seconds, True, figure)
