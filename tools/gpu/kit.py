"""What a queue's items are made of: where things lie, and the command lines of our programs and of the peers.

Invariant: a rehearsed command differs from a real one in its device, sizes and configs, and in nothing else.
"""

import dataclasses
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent))  # trust.py, gpu_record.py

ARCHIVE = "programs.tar.gz"
PACKED = "packed.json"
TRACE = "libcupti_trace.so"
GVISOR = "4.4.0"  # the kernel that it says it is; it refuses sanitizers and ncu
TOOLKIT = "/usr/local/cuda"


def pack_folder():
    """The folder of what was packed: the root of a bare copy, or .gpu of a whole tree."""
    return ROOT if (ROOT / ARCHIVE).is_file() else ROOT / ".gpu"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes that the command line may choose; None: the item's own."""

    model: str | None = None
    rows: int | None = None
    length: int | None = None
    steps: int | None = None

    def or_else(self, **own):
        return Shape(**{name: given if given is not None else own[name] for name, given in vars(self).items()})


@dataclasses.dataclass
class Kit:
    out: Path
    work: Path
    python: str
    rehearse: bool = False
    asked: Shape = Shape()
    pack: Path = dataclasses.field(default_factory=pack_folder)

    @property
    def device(self):
        return "cpu" if self.rehearse else "cuda"

    @property
    def site(self):
        """Where the peers' wheels are installed."""
        return self.work / "site"

    @property
    def scratch(self):
        """For models and checkpoints of an item."""
        return self.work / "scratch"

    def wheels(self):
        return sorted((self.pack / "wheels").glob("*.whl")) or sorted((ROOT / ".whl").glob("*.whl"))

    def config(self, model):
        path = (self.work / "tiny" if self.rehearse else HERE / "configs") / f"{model}.json"
        return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)

    def sizes(self, own):
        """The sizes that are run: tiny ones in a rehearsal."""
        return Shape(own.model, 1, 32, 1) if self.rehearse else own

    def ours(self, own, case, *flags):
        """bench_step. `case` is a schedule, or one with /checkpointing."""
        shape = self.sizes(own)
        if self.rehearse:
            flags = [flag.replace("--placement=gpu", "--placement=cpu") for flag in flags]
        which = f"bf16/{case}" if "/" in case else f"bf16/{case}/(iterations|min_time)"
        return ["bench_step", f"--device={self.device}", f"--config={self.config(own.model)}", f"--rows={shape.rows}",
                f"--length={shape.length}", f"--steps={shape.steps}", *flags, f"--benchmark_filter={which}",
                "--benchmark_format=json"]

    def peer(self, which, own, warmup, *flags, real=False):
        """A peer. In a rehearsal one with `real` trains on the CPU where its packages are installed; the others stand in."""
        shape = self.sizes(own)
        tail = ["--device", "cpu"] if self.rehearse else []
        if self.rehearse and not (real and self.has_transformers()):
            tail.append("--stand-in")
        return [self.python, self.tool(f"{which}_peer.py"), "--config", self.config(own.model), "--rows", str(shape.rows),
                "--length", str(shape.length), "--steps", str(shape.steps), "--warmup", str(1 if self.rehearse else warmup),
                *flags, *tail]

    def has_transformers(self):
        folder = Path(self.python).parent.parent / "lib"
        return any(folder.glob("python3*/site-packages/transformers"))

    def tool(self, name):
        return str((HERE / name).relative_to(ROOT))

    def compiles_adam(self):
        """DeepSpeed's C++ is of use on the image alone, whose Python its wheels are for."""
        return not self.rehearse and (self.site / "deepspeed").is_dir()

    def peer_environment(self):
        site = {} if self.rehearse else {"PYTHONPATH": str(self.site)}
        return site | {"TORCH_EXTENSIONS_DIR": str(self.work / "extensions"), "MAX_JOBS": "4",
                "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor")}

    def environment(self, more):
        """Of every step; our programs' libraries are the business of their starters (frame.py)."""
        path = [str(self.work / "run"), os.environ.get("PATH", ""), f"{TOOLKIT}/bin"]
        return os.environ | {"PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1",
                             "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
                             "TANDEM_CACHE": str(self.work / "cache"), **more}

    def starter(self, program):
        """The path of one of our programs, for tools that look for none in PATH."""
        return str(self.work / "run" / program)

    def find(self, program):
        """The path of a program of the toolkit, or None."""
        path = self.environment({})["PATH"]
        elsewhere = sorted(Path("/opt/nvidia/nsight-compute").glob(f"*/{program}"))
        return shutil.which(program, path=path) or (str(elsewhere[-1]) if elsewhere else None)

    def why_not(self, program):
        """Why a program of the toolkit cannot watch ours here; "" where it can."""
        if platform.release() == GVISOR and not self.rehearse:
            return f"kernel {GVISOR} refuses it"
        return "" if self.find(program) else f"{program} is not installed"

    def shown(self, text):
        """Without this machine's folders."""
        for folder, name in ((self.work, "WORK"), (self.out, "OUT"), (self.python, "python3"), (f"{ROOT}/", "")):
            text = text.replace(str(folder), name)
        return text


def line_of(command):
    return shlex.join(command)
