#!/usr/bin/env python3
"""The small references of tests/data are what their makers make: each is made again, and compared with the files of the tree.

    references_test.py [MAKER...]

With torch, transformers and peft in this Python; those of DeepSpeed's word only where it, or $DEEPSPEED_PYTHON, has deepspeed.
Whole numbers and texts must be equal, other numbers within what float32 and another processor's sums leave.
"""

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
# name: (the folder in tests/data, the command that makes it in FOLDER, the greatest relative distance)
MAKERS = {
    "optimizers": ("optimizers", [DATA / "make_optimizers.py", "FOLDER"], 1e-6),
    "cifar": ("cifar", [DATA / "cifar/make.py", "FOLDER"], 1e-5),
    "packing": ("packing", [DATA / "packing/make.py", "FOLDER"], 1e-5),
    "lora": ("lora", [DATA / "lora/make.py", "FOLDER"], 1e-5),
    "alpaca": ("alpaca", [DATA / "alpaca/make.py", "FOLDER"], 0),
    "foreign": ("foreign", [DATA / "foreign/make.py", "FOLDER"], 0),
    "small_qwen3": ("references/small_qwen3", ["bash", DATA / "references/make.sh", "--out", "FOLDER", "qwen3"], 1e-5),
}
OF_DEEPSPEED = {
    "gating": ("gating", [DATA / "gating/make.py", "FOLDER"], 1e-6),
    "schedules": ("schedules", [ROOT / "tests/drills/schedule_grid.py", "--record", "FOLDER"], 1e-12),
    "deepspeed": ("deepspeed", [ROOT / "tests/drills/deepspeed_checkpoints.py", "--deepspeed", "PYTHON", "--record", "FOLDER"], 1e-3),
}
SPREAD = 0.05  # of limits, which come from a few draws


def tensors_of(path):
    from safetensors.torch import load_file

    return load_file(path)


def apart(path, found, wanted, most):
    """What two values of a JSON file or two tensors differ in; empty if in nothing."""
    import torch

    if isinstance(wanted, dict) and isinstance(found, dict):
        if found.keys() != wanted.keys():
            return f"{path} has {sorted(found)}, not {sorted(wanted)}"
        return next(filter(None, (apart(f"{path}: {key}", found[key], wanted[key], most) for key in wanted)), "")
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        return next(filter(None, (apart(f"{path}[{at}]", *both, most) for at, both in enumerate(zip(found, wanted)))), "")
    if isinstance(wanted, torch.Tensor):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return f"{path} is {found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
        if wanted.is_floating_point() and wanted.numel():
            most = SPREAD if "limit." in path else most
            distance = (found.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp_min(1e-30)
            return "" if distance <= most else f"{path} is {distance:.3g} away, and {most:.3g} are allowed"
        return "" if torch.equal(found, wanted) else f"{path} differs"
    if isinstance(wanted, float) and isinstance(found, float):
        most = SPREAD if "limit" in path else most
        return "" if abs(found - wanted) <= most * max(abs(wanted), 1e-3) else f"{path} is {found}, not {wanted}"
    return "" if found == wanted else f"{path} is {found}, not {wanted}"


TORCH_OLD_FORM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def packed(path):
    """{name: bytes} of the files in an archive; tensors of torch's old form, which a process's addresses put in order."""
    import torch

    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():
                data = archive.extractfile(member).read()
                found[member.name] = torch.load(io.BytesIO(data), weights_only=True) if data.startswith(TORCH_OLD_FORM) else data
    return found


def content(path):
    if path.suffix == ".safetensors":
        return tensors_of(path)
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    return packed(path) if path.name.endswith(".tar.xz") else path.read_bytes()


def files_in(folder):
    """Without makers, and without torch's files of DeepSpeed, in which a pickle may have another order."""
    return {path.relative_to(folder) for path in folder.rglob("*")
            if path.is_file() and path.suffix not in (".py", ".sh", ".pyc", ".pt", ".bin")}  # fmt: skip


def fault_of(name, maker, python):
    committed, command, most = maker
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        words = [str(made) if word == "FOLDER" else python if word == "PYTHON" else str(word) for word in command]
        if name == "small_qwen3":
            made.mkdir()
        done = subprocess.run(words if words[0] == "bash" else [python, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}"
        made = made / Path(committed).name if name == "small_qwen3" else made
        there = files_in(DATA / committed)
        if files_in(made) != there:
            return f"{name}: {sorted(map(str, files_in(made) ^ there))} are made or in the tree, not both"
        return next(filter(None, (apart(f"{name}/{file}", content(made / file), content(DATA / committed / file), most) for file in sorted(there))), "")


def has_deepspeed(python):
    looks = "import importlib.util as u, sys; sys.exit(u.find_spec('deepspeed') is None)"
    return subprocess.run([python, "-c", looks], check=False).returncode == 0


def main():
    lacks = [module for module in ("torch", "transformers", "peft", "safetensors", "numpy") if importlib.util.find_spec(module) is None]
    if lacks:
        print(f"skipped: this Python has no {', '.join(lacks)}")
        return 77
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed = os.environ.get("DEEPSPEED_PYTHON", sys.executable)
    asked = sys.argv[1:]
    faults = []
    for makers, python in ((MAKERS, sys.executable), (OF_DEEPSPEED, deepspeed)):
        if makers is OF_DEEPSPEED and not has_deepspeed(python):
            print(f"not made again, for want of deepspeed: {', '.join(makers)}")
            continue
        for name in (name for name in makers if not asked or name in asked):
            fault = fault_of(name, makers[name], python)
            print(f"{name}: {fault or 'as in the tree'}", flush=True)
            faults += [fault] if fault else []
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
